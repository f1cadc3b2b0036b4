"""No two files need each other while they load; seen to fail on a bad example."""

import ast
import graphlib
import re

from test_architecture import KNOWN, Module, imports, modules, target


def needed_at_import(module: Module, known: frozenset[str]) -> set[str]:
    """The files that must be loaded before this one: its imports outside functions, with their packages."""
    later = {
        line
        for node in module.nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    found = {target(name, known) for line, name in imports(module) if line not in later} & known
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
