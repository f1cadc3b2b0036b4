"""The rules of docs/architecture.md, enforced on the source text; each is seen to fail on a bad example."""

import ast
import graphlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import pytest

from uneven.policy.merge import merges
from uneven.policy.sync import policies

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "uneven"
BENCHES = ROOT / "benchmarks" / "src" / "uneven_bench"
LONGEST_FILE = 500

LONGER = {"src/uneven/run/session.py"}  # one class of delegates, long by the docstrings that users read

WORLDLY = {
    *("torch", "ray", "psutil", "pynvml", "plotly", "rich", "typer", "sklearn", "tensorboard"),
    *("threading", "multiprocessing", "concurrent", "asyncio", "subprocess", "signal", "atexit"),
    *("socket", "ssl", "http", "urllib", "select", "selectors", "time", "datetime", "secrets", "uuid", "zmq"),
    *("os", "sys", "io", "pathlib", "shutil", "tempfile", "glob", "logging", "importlib", "pickle"),
}
"""What pure code must not import, anywhere in the file."""

SEEDED = {"random": {"Random"}, "numpy.random": {"Generator", "PCG64", "SeedSequence", "default_rng"}}
"""From modules of randomness only these, and only called with a seed."""

SHIPPED_MERGES = {make.__name__ for make in merges.values()}  # type: ignore[attr-defined]

LAUNCHER = re.compile(r"(LOCAL_|GROUP_)?(RANK|WORLD_SIZE)|MASTER_(ADDR|PORT)")

READERS = {
    "uneven.runtime.world": "is where every other part asks who it is",
    "uneven.runtime.slurm": "says in these words what srun says, for uneven.runtime.world",
    "uneven.testing.rank_child": "plays the launcher for tests: sets them, never reads them",
    "uneven.runtime.launch.fixed_workers": "is the launcher: sets them, never reads them",
    "uneven.runtime.launch.worker_env": "is part of the launcher: sets them, never reads them",
    "uneven.runtime.launch.elastic_workers": "is the launcher of an elastic run: sets them, never reads them",
    "uneven.cluster.emulate.emulated_workers": "is the emulator's launcher: sets them, never reads them",
    "uneven.cluster.emulate.isolated": "is the emulator's launcher: sets them, never reads them",
    "uneven.cluster.emulate.throttled": "is the emulator's launcher: sets them, never reads them",
}


@dataclass(frozen=True)
class Module:
    """One file of the package."""

    name: str
    text: str
    path: Path = Path()

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All nodes of the tree. Ten rules read them, and a walk takes four times as long as the parser."""
        return list(ast.walk(self.tree))

    @property
    def unit(self) -> str:
        """The first name below ``uneven``."""
        return self.name.partition(".")[2].partition(".")[0] or "__init__"


@cache
def modules(*folders: Path) -> tuple[Module, ...]:
    """The files below these folders, or all, in the order of their names. Each is parsed once."""
    if folders:
        return tuple(one for one in modules() if any(one.path.is_relative_to(folder) for folder in folders))
    found = []
    for package in (SOURCE, BENCHES):
        for path in sorted(package.rglob("*.py")):
            parts = path.relative_to(package.parent).with_suffix("").parts
            found.append(Module(".".join(parts).removesuffix(".__init__"), path.read_text(), path))
    return tuple(found)


@cache
def imports(module: Module) -> tuple[tuple[int, str], ...]:
    """Line and dotted name of every import, inside functions too, but not those only for type checkers."""
    for_types = [node for node in module.nodes if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)]
    skipped = {id(inner) for node in for_types for inner in ast.walk(node)}
    found: list[tuple[int, str]] = []
    for node in module.nodes:
        if not isinstance(node, ast.Import | ast.ImportFrom) or id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            found += ((node.lineno, alias.name) for alias in node.names)
        else:
            base = node.module or ""
            assert node.level == 0, f"{module.name}:{node.lineno}: relative import; write the full name"
            found += ((node.lineno, f"{base}.{alias.name}") for alias in node.names)
    return tuple(found)


def target(name: str, known: frozenset[str]) -> str:
    """The module that ``from module import name`` or ``import module`` really reads."""
    while name not in known and "." in name:
        name = name.rpartition(".")[0]
    return name


def impurities(module: Module, known: frozenset[str]) -> list[str]:
    """Every way in which this file could see or touch the world."""
    wrong = []
    for line, name in imports(module):
        if name.split(".")[0] in WORLDLY:
            wrong.append(f"{module.name}:{line} imports {name}")
        elif name.split(".")[0] in OURS and not is_pure(target(name, known)):
            wrong.append(f"{module.name}:{line} imports {target(name, known)}, which is not pure")
        elif name.startswith("random.") and name.split(".")[1] not in SEEDED["random"]:
            wrong.append(f"{module.name}:{line} imports {name}, which has no seed of its own")
    for node in module.nodes:
        if isinstance(node, ast.Call):
            wrong += [f"{module.name}:{node.lineno} {what}" for what in _bad_call(node)]
    return wrong


def dotted(node: ast.AST) -> str:
    """The name that an expression is; ``ast.unparse`` of every call takes seconds."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def _bad_call(node: ast.Call) -> Iterator[str]:
    called = dotted(node.func)
    if called in ("open", "input", "print", "exec", "eval", "__import__"):
        yield f"calls {called}()"
    place, _, function = called.rpartition(".")
    for home, good in SEEDED.items():
        here = place == home or place == home.replace("numpy", "np")
        if here and function not in good:
            yield f"calls {called}(), which shares one hidden state"
    if function in ("Random", "default_rng", "PCG64", "SeedSequence") and not (node.args or node.keywords):
        yield f"calls {called}() without a seed"


@cache
def floors() -> tuple[tuple[str, ...], ...]:
    """The floors of docs/architecture.md, from the lowest up: names directly below ``uneven``."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    picture = page.partition("```text\n")[2].partition("```")[0]
    return tuple(tuple(re.findall(r"(\w+)(?:/|\.py)", line)) for line in reversed(picture.splitlines()))


STANDS_ON = {"search": "fleet", "focus": "fleet"}
"""The only packages that import a neighbour on their floor."""


def is_pure(name: str) -> bool:
    """``errors``, everything in ``policy``, and every folder named ``pure``."""
    return name == "uneven.errors" or name.startswith("uneven.policy") or "pure" in name.split(".")


def upwards(module: Module, known: frozenset[str]) -> list[str]:
    """Imports that do not go downwards, of a module of the library."""
    level = {name: height for height, names in enumerate(floors()) for name in names}
    wrong = []
    for line, name in imports(module):
        top = target(name, known).split(".")
        if top[0] == "uneven_bench":
            wrong.append(f"{module.name}:{line} imports {name}")
        elif top[0] == "uneven" and (unit := ".".join(top[1:2]) or "__init__") != module.unit:
            below = level[unit] < level[module.unit] or STANDS_ON.get(module.unit) == unit
            wrong += [] if below else [f"{module.name}:{line} imports {name}, but {module.unit} is not above {unit}"]
    return wrong


def launcher_variables(module: Module) -> list[str]:
    """String constants that name a variable of the launcher."""
    return [
        f"{module.name}:{node.lineno} names {node.value}"
        for node in module.nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and LAUNCHER.fullmatch(node.value)
    ]


def broad_handlers(module: Module) -> list[str]:
    """``except:`` and ``except Exception`` in all spellings, unless everything is raised again at the end."""
    wrong = []
    for node in module.nodes:
        if isinstance(node, ast.ExceptHandler):
            kinds = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
            broad = any(kind is None or ast.unparse(kind) in ("Exception", "BaseException") for kind in kinds)
            if broad and ast.unparse(node.body[-1]) != "raise":
                wrong.append(f"{module.name}:{node.lineno}")
    return wrong


COLLECTIVES = re.compile(
    r"(all_)?reduce(_scatter\w*)?|all_?reduce\w*|all_gather\w*|all_to_all\w*|broadcast\w*|gather\w*|scatter\w*|barrier|"
    r"i?send\w*|i?recv\w*|batch_isend_irecv|new_group|new_subgroups\w*|P2POp"
)


def collectives(module: Module) -> list[str]:
    """Lines that exchange something between workers by themselves."""
    wrong = []
    for node in module.nodes:
        if isinstance(node, ast.Attribute) and COLLECTIVES.fullmatch(node.attr):
            if dotted(node.value) in ("dist", "torch.distributed", "c10d") or node.attr == "allreduce":
                wrong.append(f"{module.name}:{node.lineno} uses {node.attr}")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch.distributed"):
            found = [alias.name for alias in node.names if COLLECTIVES.fullmatch(alias.name)]
            wrong += [f"{module.name}:{node.lineno} imports {name}" for name in found]
    return wrong


def asks_for_a_merge(module: Module) -> list[str]:
    """Lines that ask which of the shipped merges one is, rather than what it says about itself."""
    wrong = []
    for node in module.nodes:
        asked: ast.AST | None = None
        if isinstance(node, ast.Call) and dotted(node.func) in ("isinstance", "issubclass"):
            asked = node.args[1]
        elif isinstance(node, ast.Compare) and any(map(_asks_for_the_type, ast.walk(node))):
            asked = node
        elif isinstance(node, ast.MatchClass):
            asked = node.cls
        found = {ast.unparse(one).rpartition(".")[2] for one in ast.walk(asked)} if asked is not None else set()
        if found & SHIPPED_MERGES:
            wrong.append(f"{module.name}:{node.lineno}")
    return wrong


def _asks_for_the_type(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and dotted(node.func) == "type"


FAMILIES = {getattr(make, "__name__", "") for make in policies.values()}
"""Their classes and makers."""

NAMED = {name for name in policies if name != "bsp"}
"""The names of families; bsp is the default, which any message may offer."""

OTHER_WORDS = {
    "local": "an engine of jobs",
    "shuffle": "an option of loaders",
    "shadow": "a line in the background",
    "ma": "a moving average",
}
"""Names that are words of something else too, where nothing follows them."""

WAYS_OUT = {
    "uneven.run.loops.site_evaluation": "its part is made for policies that visits tune, and it names one",
    "uneven.run.replicas.server.outer_round": "of a model with running statistics, what trains it without outer steps",
    "uneven.run.step.refusals": "what an elastic run carries, and under what parts can exchange",
    "uneven.why.pure.remedies": "a remedy is a command that a user can type",
}
"""Modules whose messages offer a family by its name; none may be added."""


def asks_for_a_family(module: Module) -> list[str]:
    """Lines that use the class of a policy, or have the name of one in a text that is not a docstring."""
    docs = {
        id(node.body[0].value)
        for node in module.nodes
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    found = [
        node.lineno
        for node in module.nodes
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").startswith("uneven.policy.sync")
        and FAMILIES & {alias.name for alias in node.names}
    ]
    for node in module.nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            found += [node.lineno] if _names_one(node.value) else []
    return [f"{module.name}:{line}" for line in sorted({*found})]


CHOSEN = re.compile(rf"""(--sync |sync ?= ?['"]?|'bsp' or ')({"|".join(NAMED)})\b""")


def _names_one(text: str) -> bool:
    begins = text.startswith(tuple(f"{name}:" for name in NAMED))
    return text in NAMED - {*OTHER_WORDS} or begins or CHOSEN.search(text) is not None


KNOWN = frozenset(module.name for module in modules())
LIBRARY = tuple(module for module in modules() if module.name.split(".")[0] == "uneven")
OURS = ("uneven", "uneven_bench")


def test_pure_files_import_nothing_of_the_world() -> None:
    found = [module for module in modules() if is_pure(module.name)]
    assert len(found) >= 150
    assert [wrong for module in found for wrong in impurities(module, KNOWN)] == []


def test_types_are_checked_strictly_where_files_are_pure() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]["overrides"]
    (strict,) = (one["module"] for one in settings if "strict_equality" in one)
    assert strict == ["uneven.errors", "uneven.policy.*", "uneven.*.pure.*"]


def test_importing_all_pure_files_loads_no_engine() -> None:
    names = [module.name for module in modules() if is_pure(module.name)]
    code = f"import sys, {', '.join(names)}; print(*sorted({{'torch', 'plotly', 'ray'}} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=SOURCE.parent)
    assert (run.stdout.strip(), run.stderr) == ("", "")


def test_imports_go_downwards() -> None:
    assert sorted(name for names in floors() for name in names) == sorted({module.unit for module in LIBRARY})
    assert [wrong for module in LIBRARY for wrong in upwards(module, KNOWN)] == []


def test_no_two_files_of_the_benches_need_each_other() -> None:
    benches = [module for module in modules() if module not in LIBRARY]
    needs = {one.name: {target(name, KNOWN) for _, name in imports(one)} & KNOWN - {one.name} for one in benches}
    assert len(list(graphlib.TopologicalSorter(needs).static_order())) > 90


def test_ranks_compare_the_code_that_takes_part_in_a_run() -> None:
    """What ``uneven.run.session``, and the package that it is in, reach by imports, in functions too."""
    from uneven.run.start.connect import IN_A_RUN

    by_name = {module.name: module for module in modules()}
    reached, waiting = set(), ["uneven", "uneven.run.session"]
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += [target(one, KNOWN) for _, one in imports(by_name[name]) if one.split(".")[0] == "uneven"]
    units = {name.split(".")[1] if "." in name else "__init__" for name in reached}
    assert sorted(units) == sorted(IN_A_RUN)


def test_only_the_world_reads_the_launchers_variables() -> None:
    assert [wrong for one in modules() if one.name not in READERS for wrong in launcher_variables(one)] == []


def test_no_broad_exception_handler() -> None:
    # No failure of `uneven why` may end a training that is not ours.
    others = [module for module in modules() if module.name != "uneven.why.unharmed"]
    assert [wrong for module in others for wrong in broad_handlers(module)] == []


def test_nobody_exchanges_with_others_but_on_lines() -> None:
    ours = [module for module in modules() if module.name.split(".")[0] == "uneven"]
    lines = [module for module in ours if module.name.startswith("uneven.run.lines.")]
    assert any(map(collectives, lines))
    assert [wrong for module in ours if module not in lines for wrong in collectives(module)] == []


@pytest.mark.parametrize(
    "text",
    [
        "import torch.distributed as dist\ndist.all_reduce(x)",
        "import torch\ntorch.distributed.barrier()",
        "from torch.distributed import isend",
        "group.allreduce([x])",
        "import torch.distributed as dist\npartial(dist.broadcast, src=0)",
    ],
)
def test_an_exchange_beside_the_lines_is_seen(text: str) -> None:
    assert collectives(Module("uneven.run.bad", text)) != []


def test_nobody_asks_which_merge_it_is_but_the_merges_themselves() -> None:
    assert {"Mean", "Add", "Elastic", "BlockMomentum"} <= SHIPPED_MERGES
    others = [module for module in modules() if not module.name.startswith("uneven.policy.merge.")]
    assert [wrong for module in others for wrong in asks_for_a_merge(module)] == []


def test_no_file_but_those_of_policies_names_a_family() -> None:
    others = [module for module in LIBRARY if not module.name.startswith("uneven.policy.sync")]
    found = [line for module in others for line in asks_for_a_family(module)]
    assert {line.partition(":")[0] for line in found} == {*WAYS_OUT}, found


@pytest.mark.parametrize(
    "text",
    [
        "from uneven.policy.sync import BSP, SyncPolicy",
        "if name == 'diloco':\n    pass",
        "inner = 'shadow:ma'",
        "raise ConfigError(f\"{x}: use sync = 'local'\")",
        "say('add --sync easgd:every=8')",
    ],
)
def test_a_family_that_is_named_is_seen(text: str) -> None:
    assert asks_for_a_family(Module("uneven.run.bad", text)) != []
    good = '"""Not diloco."""\nfrom uneven.policy.sync import policies\nengine = "local"\nuse = "sync=\'bsp\'"'
    assert asks_for_a_family(Module("uneven.run.good", good)) == []


def test_files_stay_short() -> None:
    folders = [ROOT / name for name in ("src", "benchmarks", "tests", "examples")]
    files = [path for folder in folders for path in folder.rglob("*.py")]
    lengths = {str(path.relative_to(ROOT)): path.read_text().count("\n") for path in files}
    assert {name for name, lines in lengths.items() if lines > LONGEST_FILE} == LONGER


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("import torch", "imports torch"),
        ("import torch.nn as nn", "imports torch.nn"),
        ("from time import perf_counter", "imports time.perf_counter"),
        ("def f():\n    import threading", "imports threading"),
        ("from os import environ", "imports os.environ"),
        ("from uneven.runtime.world import discover", "uneven.runtime.world, which is not pure"),
        ("from uneven.journal import writer", "uneven.journal.writer, which is not pure"),
        ("import uneven", "uneven, which is not pure"),
        ("import random\nrandom.shuffle([])", "calls random.shuffle()"),
        ("import random\nrandom.Random()", "without a seed"),
        ("from random import shuffle", "imports random.shuffle"),
        ("import numpy as np\nnp.random.rand()", "calls np.random.rand()"),
        ("import numpy as np\nnp.random.default_rng()", "without a seed"),
        ("from numpy.random import default_rng\ndefault_rng()", "without a seed"),
        ("open('x')", "calls open()"),
    ],
)
def test_impurity_is_seen(text: str, complaint: str) -> None:
    (wrong,) = impurities(Module("uneven.policy.core.bad", text), KNOWN)
    assert complaint in wrong


@pytest.mark.parametrize(
    "text",
    [
        "import math\nfrom uneven.policy.core.views import Limits\nfrom uneven.policy.sync import BSP",
        "import random\nrandom.Random(3).shuffle([])",
        "from numpy.random import PCG64, Generator\nGenerator(PCG64(1))",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch",
    ],
)
def test_purity_is_not_mistaken(text: str) -> None:
    assert impurities(Module("uneven.policy.core.good", text), KNOWN) == []


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("uneven.policy.bad", "def later():\n    from uneven.run.session import Session", "policy is not above run"),
        ("uneven.run.bad", "import uneven.cluster.files", "run is not above cluster"),
        ("uneven.graph.bad", "from uneven.fleet import train", "graph is not above fleet"),
        ("uneven.cli.bad", "import uneven", "cli is not above __init__"),
        ("uneven.cli.bad", "import uneven_bench.faults", "imports uneven_bench.faults"),
    ],
)
def test_a_wrong_direction_is_seen(name: str, text: str, complaint: str) -> None:
    (wrong,) = upwards(Module(name, text), KNOWN)
    assert complaint in wrong
    assert upwards(Module("uneven.search.good", "import uneven.fleet\nimport uneven.errors"), KNOWN) == []


def test_a_second_reader_of_the_environment_is_seen() -> None:
    text = "import os\nprint(os.environ['LOCAL_RANK'], os.getenv('MASTER_ADDR'), 'rank')"
    bad = Module("uneven.journal.report.bad", text)
    assert launcher_variables(bad) == [
        "uneven.journal.report.bad:2 names LOCAL_RANK",
        "uneven.journal.report.bad:2 names MASTER_ADDR",
    ]


@pytest.mark.parametrize("kind", ["", " Exception", " Exception as e", " (ValueError, BaseException)"])
def test_a_broad_handler_is_seen(kind: str) -> None:
    assert broad_handlers(Module("x", f"try:\n    pass\nexcept{kind}:\n    pass")) == ["x:3"]
    assert broad_handlers(Module("x", f"try:\n    pass\nexcept{kind}:\n    tidy()\n    raise")) == []


@pytest.mark.parametrize(
    "text",
    [
        "isinstance(one.merge, Mean)",
        "isinstance(one.merge, actions.Add | Elastic)",
        "issubclass(kind, (int, BlockMomentum))",
        "type(one.merge) is Mean",
        "match one.merge:\n    case Elastic(alpha=x):\n        pass",
    ],
)
def test_a_question_for_a_merge_is_seen(text: str) -> None:
    assert asks_for_a_merge(Module("uneven.run.bad", text)) != []
    good = "isinstance(one.merge, Merge)\none.merge == Mean()\ntype(one.merge) is type(other)"
    assert asks_for_a_merge(Module("uneven.run.good", good)) == []
