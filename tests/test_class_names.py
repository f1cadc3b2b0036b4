"""A class name stands for one thing; seen to fail on a bad example."""

import ast
from collections import defaultdict
from collections.abc import Iterable

from test_architecture import Module, modules

MOST_DOUBLED = 8


def doubled(sources: Iterable[Module]) -> dict[str, list[str]]:
    """Names of classes, private ones too, that more than one file defines, and which files those are."""
    where: dict[str, set[str]] = defaultdict(set)
    for module in sources:
        for name in (node.name for node in module.nodes if isinstance(node, ast.ClassDef)):
            where[name].add(module.name)
    return {name: sorted(files) for name, files in sorted(where.items()) if len(files) > 1}


def test_a_class_name_stands_for_one_thing() -> None:
    assert len(modules()) > 400
    found = doubled(modules())
    assert len(found) <= MOST_DOUBLED, found


def test_a_class_name_that_stands_for_two_things_is_seen() -> None:
    one, other = "class Plan:\n    class _Row: ...", "class _Row: ...\nclass Table: ..."
    sources = [Module("a", one), Module("b", other), Module("c", "class Only: ...\n" * 2)]
    assert doubled(sources) == {"_Row": ["a", "b"]}
