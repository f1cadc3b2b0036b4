"""No two files need each other while they load; seen to fail on a bad example."""

import ast
import graphlib
import re
from collections import Counter

from test_architecture import KNOWN, ROOT, Module, imports, modules, target

WINDOWS_LACKS = {"fcntl", "grp", "pty", "pwd", "resource", "syslog", "termios", "tty"}
"""Modules that only uneven.runtime.system imports while it loads, on other systems."""


def named_at_import(module: Module) -> set[str]:
    """What the file imports outside functions."""
    later = {
        line
        for node in module.nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    return {name for line, name in imports(module) if line not in later}


def needed_at_import(module: Module, known: frozenset[str]) -> set[str]:
    """The files that must be loaded before this one: its imports outside functions, with their packages."""
    found = {target(name, known) for name in named_at_import(module)} & known
    found |= {name[: place.start()] for name in found for place in re.finditer(r"\.", name)} & known
    # Its own packages are loading already.
    return {name for name in found if not f"{module.name}.".startswith(f"{name}.")}


def test_every_file_can_be_the_first_that_is_imported() -> None:
    needs = {one.name: needed_at_import(one, KNOWN) for one in modules()}
    assert len(list(graphlib.TopologicalSorter(needs).static_order())) > 700


def test_two_files_that_need_each_other_while_they_load_are_seen() -> None:
    known = frozenset({"uneven.a", "uneven.b", "uneven.b.c"})
    first = Module("uneven.a", "from uneven.b.c import x\ndef f():\n    import uneven.d")
    second = Module("uneven.b", "from uneven.a import y")
    assert needed_at_import(first, known) == {"uneven.b", "uneven.b.c"}
    assert needed_at_import(second, known) == {"uneven.a"}
    assert needed_at_import(Module("uneven.b.c", "from uneven.b import z"), known) == set()


def test_every_file_loads_on_windows() -> None:
    ours = [one for one in modules() if one.name.partition(".")[0] == "uneven"]
    needs = {one.name: {name.partition(".")[0] for name in named_at_import(one)} & WINDOWS_LACKS for one in ours}
    assert {name: lacks for name, lacks in needs.items() if lacks} == {"uneven.runtime.system": {"fcntl", "resource"}}


def test_no_two_test_files_have_one_name() -> None:
    """pytest imports them by it, so a plain ``pytest`` would refuse the second one."""
    names = Counter(
        path.name for folder in ("tests", "benchmarks/tests") for path in (ROOT / folder).rglob("test_*.py")
    )
    assert [name for name, count in names.items() if count > 1] == []


def test_what_is_marked_for_the_second_tier_is_in_a_folder_that_it_collects() -> None:
    (line,) = re.findall(r"^MARKED := (.*)$", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    mark = re.compile(r"^@pytest\.mark\.rest$|^from tiers ", re.MULTILINE)
    marked = [path for path in (ROOT / "tests").rglob("test_*.py") if mark.search(path.read_text())]
    folders = [ROOT / folder for folder in line.split()]
    assert len(marked) > 5
    assert [path.name for path in marked if not any(map(path.is_relative_to, folders))] == []
