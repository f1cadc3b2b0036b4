"""A class name stands for one thing; seen to fail on a bad example."""

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
MOST_DOUBLED = 8


def doubled(sources: Mapping[str, str]) -> dict[str, list[str]]:
    """Names of classes, private ones too, that more than one file defines, and which files those are."""
    where: dict[str, set[str]] = defaultdict(set)
    for path, text in sources.items():
        for name in (node.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)):
            where[name].add(path)
    return {name: sorted(paths) for name, paths in sorted(where.items()) if len(paths) > 1}


def shipped() -> Iterator[tuple[str, str]]:
    for folder in ("src/uneven", "benchmarks/src"):
        for path in (ROOT / folder).rglob("*.py"):
            yield str(path.relative_to(ROOT)), path.read_text()


def test_a_class_name_stands_for_one_thing() -> None:
    sources = dict(shipped())
    assert len(sources) > 400
    found = doubled(sources)
    assert len(found) <= MOST_DOUBLED, found


def test_a_class_name_that_stands_for_two_things_is_seen() -> None:
    one, other = "class Plan:\n    class _Row: ...", "class _Row: ...\nclass Table: ..."
    sources = {"a.py": one, "b.py": other, "c.py": "class Only: ...\n" * 2}
    assert doubled(sources) == {"_Row": ["a.py", "b.py"]}
