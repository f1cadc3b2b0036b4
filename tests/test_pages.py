"""The pages are run: their Python blocks in processes of their own, their commands against the command line."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from test_architecture import SOURCE
from test_english import comments, docstrings, sources
from uneven.cli import application
from uneven.cli.commands import COMMANDS
from uneven.policy.core.run_config import RunConfig, fields
from uneven_bench.forked.scripts import run_script

ROOT = Path(__file__).parents[1]
ARCHITECTURE = ROOT / "docs" / "architecture.md"
INVENTED = {"train.py", "queue.py", "mymodels.py", "my_plugins.py", "mnist/main.py"}
"""The files of users, which pages and docstrings show."""

OF_OTHERS = {"FSDP2/example.py", "backbone_image_classifier.py", "nlp_example.py", "run_clm.py", "transformer.py"}
"""The scripts of other projects with which uneven was tried."""

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(text: str, language: str) -> list[str]:
    """The fenced blocks of a language; a word after it (``python no-run``) makes it another one."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def script_of(text: str) -> str:
    """All Python blocks in one script, on the lines where they stand in the page."""
    lines: list[str] = []
    for match in re.finditer(r"^```python\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL):
        lines += [""] * (text[: match.start(1)].count("\n") - len(lines)) + match[1].splitlines()
    return "\n".join(lines) + "\n"


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


START = ROOT / "docs" / "start.md"

TUTORIALS = ROOT / "docs" / "tutorials"
"""`make notebooks` executes these pages, and tests/test_tutorials.py reads them."""
RUNNABLE = [
    page for page in PAGES if page != ARCHITECTURE and page.parent != TUTORIALS and blocks(page.read_text(), "python")
]
LONG = (
    START,
    ROOT / "docs" / "compare" / "ray.md",
    *(ROOT / "docs" / "how-to" / f"{name}.md" for name in ("fleet", "focus", "notebook", "search-trials")),
    ROOT / "docs" / "how-to" / "recommendation-servers.md",
    *(ROOT / "docs" / "api").glob("*.md"),
)
"""Pages that tests/system runs: they train for long, or start processes that import torch, or show the API."""


FORKS = """
import runpy
from uneven_bench.forked.run import fork_workers

fork_workers()
runpy.run_path("page.py", run_name="__main__")
"""


def run(page: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """In a process of its own, which has imported what nearly every page imports."""
    (directory / "page.py").write_text(page)
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    return run_script(["-c", FORKS], cwd=directory, env=env, timeout_s=280)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", [page for page in RUNNABLE if page not in LONG], ids=named)
def test_python_blocks_run(page: Path, tmp_path: Path) -> None:
    check(page, tmp_path)


def check(page: Path, tmp_path: Path) -> None:
    """Run the Python blocks of a page."""
    done = run(script_of(page.read_text()), tmp_path)
    assert done.returncode == 0, done.stderr
    assert "uneven:" not in done.stderr  # our own warnings; torch may have some about one process


def test_a_block_that_fails_is_named_by_its_line_in_the_page(tmp_path: Path) -> None:
    text = "# Page\n\n```python\nx = 1\n```\n\nText.\n\n```python\nassert x == 2\n```\n"
    done = run(script_of(text), tmp_path)
    assert done.returncode == 1
    assert "line 10" in done.stderr


def test_pages_know_nothing_of_one_another(tmp_path: Path) -> None:
    first = "import atexit, os, sys\nos.environ['SEEN'] = sys.seen = 'yes'\natexit.register(print, 'the end')\n"
    one = run(first, tmp_path)
    assert (one.returncode, one.stdout, one.stderr) == (0, "the end\n", "")
    two = run("import os, sys\nprint(os.getcwd(), hasattr(sys, 'seen'), 'SEEN' in os.environ)\n", tmp_path)
    assert two.stdout == f"{tmp_path} False False\n"


def test_few_blocks_are_left_out() -> None:
    assert len(RUNNABLE) >= 7
    found = [language for page in PAGES for language in re.findall(r"^```(\w[^\n]*)$", page.read_text(), re.MULTILINE)]
    assert found.count("python no-run") <= 2
    languages = {"python", "python no-run", "python theirs", "sh", "text", "toml", "signatures", "diff", "bash"}
    assert set(found) <= languages | {"yaml", "bibtex", "{toctree}", "{eval-rst}", "{include}"}


def test_scripts_of_other_libraries_parse() -> None:
    """They were run by hand: no environment of the tests has all these libraries."""
    found = {
        named(page): blocks(page.read_text(), "python theirs") for page in (ROOT / "docs" / "compare").glob("*.md")
    }
    assert [page for page, scripts in found.items() if not scripts] == ["docs/compare/index.md"]
    for scripts in found.values():
        for script in scripts:
            ast.parse(script)


def wrong(line: str) -> list[str]:
    """What a command line of the documentation says that ``uneven`` does not understand."""
    words = shlex.split(line, comments=True)
    if words[:1] != ["uneven"]:
        return []
    if words[1] not in COMMANDS:
        return [] if words[1].startswith("-") else [f"no command {words[1]}"]
    command: Any = typer.main.get_command(application(words[1:2])).commands[words[1]]  # type: ignore[attr-defined]
    rest = words[2:]
    while hasattr(command, "commands"):
        if rest[0] not in command.commands:
            return [f"no {words[1]} {rest[0]}"]
        command, rest = command.commands[rest[0]], rest[1:]
    options = {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
    rest = rest[: rest.index("--")] if "--" in rest else rest  # what follows is a script's
    if COMMANDS[words[1]].passes_on:  # what follows the script is the script's
        script = next((at for at, word in enumerate(rest) if word.endswith(".py")), len(rest))
        rest = rest[:script]
    return [f"no option {word} of {words[1]}" for word in rest if word.startswith("-") and word not in options]


def test_commands_of_the_pages_exist() -> None:
    those = [block.replace("\\\n", "") for page in PAGES for block in blocks(page.read_text(), "sh")]
    lines = [line for block in those for line in block.splitlines()]
    assert sum(line.startswith("uneven ") for line in lines) >= 15
    assert [what for line in lines for what in wrong(line)] == []


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("uneven wacth runs/NAME", "no command wacth"),
        ("uneven run --nprc 4 train.py --nprc 4", "no option --nprc of run"),
        ("uneven bench speed", "no bench speed"),
        ("uneven bench rivals --sweep", "no option --sweep of bench"),
    ],
)
def test_the_check_of_commands_finds(line: str, complaint: str) -> None:
    assert wrong(line) == [complaint]


def test_the_folder_map_is_true() -> None:
    (table,) = re.findall(r"(?s)^\| folder below .*?\n\n", ARCHITECTURE.read_text(), flags=re.MULTILINE)
    cells = re.findall(r"^\| (`[^|]+/`) \|", table, flags=re.MULTILINE)
    rows = [row for cell in cells for row in re.findall(r"`([^`]+)/`", cell)]
    source = ROOT / "src" / "uneven"
    assert [row for row in rows if not (source / row).is_dir()] == []
    floors = {"cluster", "cluster/pure", "policy", "run", "runtime"}
    inside = {str(path.parent.relative_to(source)) for path in source.rglob("*.py")} - {"."}
    assert {name for name in inside if not any(f"{name}/".startswith(f"{row}/") for row in rows)} <= floors


def defined(tree: ast.AST, within: str = "") -> Iterator[str]:
    """The classes and functions of a file, and `Class.method` for what a class defines."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield within + node.name
            yield from defined(node, f"{within}{node.name}.")


def missing_in_walks(page: str) -> list[str]:
    """Steps of walks whose file, or whose class, method or function, does not exist."""
    found = []
    for file, name in re.findall(r"^\d+\. `([\w/]+\.py)` `([\w.]+)`: ", page, flags=re.MULTILINE):
        path = ROOT / "src" / "uneven" / file
        if not path.is_file() or name not in defined(ast.parse(path.read_text())):
            found.append(f"{file} {name}")
    return found


def test_the_walks_lead_through_files_that_exist() -> None:
    walks = re.findall(r"(?:^\d+\. .*\n)+", ARCHITECTURE.read_text().partition("## Five walks")[2], flags=re.MULTILINE)
    steps = [step for walk in walks for step in walk.splitlines()]
    assert len(walks) == 5
    assert max(walk.count("\n") for walk in walks) <= 12
    assert [step for step in steps if not re.match(r"\d+\. `[\w/]+\.py` `[\w.]+`: ", step)] == []
    assert missing_in_walks("\n".join(steps)) == []


def test_a_step_that_leads_nowhere_is_seen() -> None:
    steps = ["run/gone.py` `f", "run/session.py` `Session.no", "run/session.py` `step", "run/session.py` `Session.step"]
    page = "\n".join(f"{number}. `{step}`: x" for number, step in enumerate(steps, 1))
    assert missing_in_walks(page) == ["run/gone.py f", "run/session.py Session.no", "run/session.py step"]


def gone(text: str, near: str = "") -> list[str]:
    """The Python files of a text that do not exist; a name without a folder must be below ``near``."""
    names = set(re.findall(r"(?<![\w*/.-])[\w/]+\.py\b", text)) - INVENTED - OF_OTHERS
    places = {one: below("" if "/" in one else near) for one in sorted(names)}
    return [one for one, files in places.items() if not any(file.endswith(f"/{one}") for file in files)]


@cache
def below(folder: str) -> tuple[str, ...]:
    places = [ROOT / folder] if folder else [ROOT / name for name in ("src", "benchmarks", "tests", "docs", "examples")]
    return tuple(f"/{path.relative_to(ROOT).as_posix()}" for place in places for path in place.rglob("*.py"))


def test_files_that_pages_name_exist() -> None:
    code = {page: re.findall(r"`[^`\n]+`", re.sub(r"(?ms)^```.*?^```$", "", page.read_text())) for page in PAGES}
    assert [(named(page), one) for page, found in code.items() for one in gone(" ".join(found))] == []


def test_files_that_docstrings_and_comments_name_exist() -> None:
    found = [
        (place, one)
        for place, module in sources(SOURCE)
        for _, text in (*docstrings(module), *comments(module))
        if ".py" in text
        for one in gone(text, "/".join(Path(place).parts[:3]) if place.count("/") > 2 else "")
    ]
    assert found == []


def test_a_file_that_is_gone_is_seen() -> None:
    assert gone("run/step/loop.py, run/loop.py, session.py and door.py", "src/uneven/run") == ["door.py", "run/loop.py"]


def test_every_bench_is_listed() -> None:
    (section,) = re.findall(r"(?s)^## Benches\n(.*?)^## ", ARCHITECTURE.read_text(), flags=re.MULTILINE)
    rows = re.findall(r"^\| [^|`]+ \| (`.*`) \|$", section, flags=re.MULTILINE)
    listed = [name for row in rows for name in re.findall(r"`([^`]+)`", row)]
    command: Any = typer.main.get_command(application(["bench"])).commands["bench"]  # type: ignore[attr-defined]
    assert sorted(listed) == sorted(command.commands)


def test_the_table_of_settings_is_that_of_the_code() -> None:
    page = (ROOT / "docs" / "reference.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \|[^|]*\| `([^`]+)` \|", page, flags=re.MULTILINE)
    assert {key: ast.literal_eval(default) for key, default in rows} == fields(RunConfig())


def test_every_key_of_the_benchmark_is_explained() -> None:
    bench = ROOT / "benchmarks" / "src" / "uneven_bench" / "lb_bsp"
    of_all, of_a_case = {"cases", "left_out", "methods", "best_rival", "gain_over_best_rival"}, set()
    for node in ast.parse((bench / "bench.py").read_text()).body:
        if isinstance(node, ast.FunctionDef) and node.name in ("steady_keys", "pair_keys"):
            (result,) = (line.value for line in node.body if isinstance(line, ast.Return))
            of_all |= written(result)
    for node in ast.parse((bench / "table.py").read_text()).body:
        if isinstance(node, ast.FunctionDef) and node.name in ("summarize", "reached"):
            of_a_case |= set().union(*map(written, ast.walk(node)))
    page = (ROOT / "docs" / "measurements" / "lb-bsp.md").read_text()
    section = page.split("## What the benchmark prints")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \|", section, flags=re.MULTILINE)
    explained = {key for row in rows for key in re.findall(r"`(\w+)`", row)}
    assert of_all >= {"control_share", "equal_workers_ratio"}
    assert explained == of_all
    assert of_a_case >= {"of_limit", "time_to_target_s"}
    assert of_a_case - set(re.findall(r"`(\w+)`", section)) == set()


def written(node: ast.AST) -> set[str]:
    """The keys of a dictionary that is written out."""
    keys = node.keys if isinstance(node, ast.Dict) else []
    return {key.value for key in keys if isinstance(key, ast.Constant)}
