"""The tutorials: page and notebook agree, and their code uses names that exist. ``make notebooks`` executes them."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import uneven

DOCS = Path(__file__).parents[1] / "docs"
FOLDER = DOCS / "tutorials"
NOTEBOOKS = runpy.run_path(str(DOCS / "notebooks.py"), run_name="notebooks")
PAGES: list[Path] = NOTEBOOKS["PAGES"]
EACH = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


def code(page: Path) -> list[str]:
    """The code cells of a page's notebook."""
    return [cell["source"] for cell in NOTEBOOKS["notebook"](page.read_text())["cells"] if cell["cell_type"] == "code"]


def python(cells: list[str]) -> list[str]:
    """The cells of Python, without the first line of those that write a file."""
    return [re.sub(r"\A%%writefile \S+\.py\n", "", cell) for cell in cells if not is_other(cell)]


def is_other(cell: str) -> bool:
    return cell.startswith("%%sh") or bool(re.match(r"%%writefile \S+\.toml\n", cell))


def test_all_are_on_the_landing_page_and_in_the_sidebar() -> None:
    assert [page.name[0] for page in PAGES] == [*"123456789"]
    cards = re.findall(r"^:link: (.+)$", (FOLDER / "index.md").read_text(), re.MULTILINE)
    assert cards == [page.stem for page in PAGES]
    sidebar = re.findall(r"^tutorials/(.+)$", (DOCS / "index.md").read_text(), re.MULTILINE)
    assert sidebar == ["index", *(page.stem for page in PAGES)]


@EACH
def test_the_notebook_has_the_blocks_and_the_text_of_the_page(page: Path) -> None:
    lines = page.read_text().splitlines()
    fences = [at for at, line in enumerate(lines) if line.startswith("```")]
    blocks = ["\n".join(lines[begin + 1 : end]) for begin, end in zip(fences[::2], fences[1::2], strict=True)]
    kinds = [lines[begin] for begin in fences[::2]]
    assert set(kinds) <= {"```python", "```sh", "```text"}
    run = [block for kind, block in zip(kinds, blocks, strict=True) if kind != "```text"]
    assert [cell.removeprefix("%%sh -e\n") for cell in code(page)] == run
    cells = NOTEBOOKS["notebook"](page.read_text())["cells"]
    text = "\n".join(cell["source"] for cell in cells if cell["cell_type"] == "markdown")
    prose = re.sub(r"(?ms)^```(?:python|sh)$.*?^```$", "", page.read_text())
    headings = re.findall(r"^#+ .*$", prose, re.MULTILINE)
    assert re.findall(r"^#+ .*$", text, re.MULTILINE) == headings
    assert not re.search(r"\]\((?!https?:)|\{download\}", text), "a link that leads nowhere in a notebook"
    plain = re.compile(r"\*|\[|\]\(.*?\)|^!.*$|^\{.*$", re.MULTILINE)
    assert plain.sub("", text).split() == plain.sub("", prose).split()


@EACH
def test_it_can_be_downloaded_and_ends_with_its_picture(page: Path) -> None:
    text = page.read_text()
    assert f"<{page.stem}.ipynb>`" in text
    assert code(page)[-1].endswith("plt.show()")
    end = text.rpartition("plt.show()\n```\n")[2]
    assert re.findall(r"!\[.+\]\((.+)\)", end) == [f"../pictures/tutorials/{page.stem}.png"]


@EACH
def test_its_cells_compile_and_use_names_that_exist(page: Path) -> None:
    cells = python(code(page))
    for cell in cells:
        compile(cell, page.name, "exec")
    assert missing("\n".join(cells)) == []


@EACH
def test_it_starts_only_scripts_that_it_has_written(page: Path) -> None:
    written: set[str] = set()
    for cell in code(page):
        written |= set(re.findall(r"\A%%writefile (\S+)", cell))
        if cell.startswith("%%sh"):
            assert set(re.findall(r"\b[\w-]+\.(?:py|toml)\b", cell)) <= written


def missing(text: str) -> list[str]:
    """The names and keywords of uneven that some code uses and that do not exist."""
    tree, known, found = ast.parse(text), {}, []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            known |= {one.name: importlib.import_module(one.name) for one in node.names if one.name == "uneven"}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "uneven":
            for one in node.names:
                try:
                    known[one.name] = named(node.module or "", one.name)
                except (ImportError, AttributeError):
                    found.append(f"{node.module}.{one.name}")
    known |= {"session": uneven.Session} if "uneven" in known else {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            home = known.get(node.value.id)
            found += [f"{node.value.id}.{node.attr}"] if home is not None and not hasattr(home, node.attr) else []
        if isinstance(node, ast.Call) and (called := resolved(node.func, known)) is not None:
            found += [f"{ast.unparse(node.func)}({name}=)" for name in keywords(node) if not takes(called, name)]
    return found


def named(module: str, name: str) -> Any:
    home = importlib.import_module(module)
    return getattr(home, name) if hasattr(home, name) else importlib.import_module(f"{module}.{name}")


def resolved(node: ast.expr, known: dict[str, Any]) -> Any:
    """What a name or an attribute of a known name is; None if that is unknown."""
    if isinstance(node, ast.Name):
        return known.get(node.id) if not isinstance(known.get(node.id), ModuleType) else None
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return getattr(known.get(node.value.id), node.attr, None)
    return None


def keywords(call: ast.Call) -> Iterator[str]:
    yield from (one.arg for one in call.keywords if one.arg is not None)


def takes(called: Any, keyword: str) -> bool:
    parameters = inspect.signature(called).parameters
    return keyword in parameters or any(one.kind is one.VAR_KEYWORD for one in parameters.values())


def test_names_that_are_gone_are_seen() -> None:
    text = (
        "import uneven\nfrom uneven import graph\nfrom uneven.graph import cutt\n"
        "session = uneven.Session(synk=1, sync='bsp')\nsession.setupp()\nsession.setup()\ngraph.load('x', seeed=1)\n"
    )
    gone = {"graph.load(seeed=)", "session.setupp", "uneven.Session(synk=)", "uneven.graph.cutt"}
    assert set(missing(text)) == gone
