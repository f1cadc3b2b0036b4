"""Writes the tables of docs/how-to/inputs/: ``python tests/brought_page.py``."""

from __future__ import annotations

import contextlib
import io
import sys
from pathlib import Path

import pytest

from brought import KINDS

TESTS = Path(__file__).parent
FOLDER = TESTS.parent / "docs" / "how-to" / "inputs"
BEGIN, END = "<!-- tests/brought_page.py writes the tables -->\n", "<!-- end of the tables -->\n"
OUTCOMES = (("Supported", False), ("Raises an error", True))


class Rows:
    """A pytest plug-in that collects the marks."""

    def __init__(self) -> None:
        self.found: dict[str, set[tuple[str, str, bool]]] = {kind: set() for kind in KINDS}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            for mark in item.iter_markers("brought"):
                kind, peer, what, refused = mark.args
                self.found[kind].add((peer, what, refused))


def collected() -> Rows:
    """The rows of all marked tests."""
    files = [str(one) for one in sorted(TESTS.rglob("test_*.py")) if "brought(" in one.read_text()]
    rows = Rows()
    with contextlib.redirect_stdout(io.StringIO()) as said:
        code = pytest.main(["--collect-only", "--quiet", "--numprocesses", "0", *files], plugins=[rows])
    if code:
        raise SystemExit(said.getvalue())
    return rows


def tables(found: set[tuple[str, str, bool]]) -> str:
    """The tables of one kind: the inputs that are supported, and those that raise an error."""
    lines: list[str] = []
    for title, raises in OUTCOMES:
        rows = [f"| {peer} | {what} |" for peer, what, refused in sorted(found) if refused is raises]
        if rows:
            lines += [f"## {title}", "", "| from | input |", "|---|---|", *rows, ""]
    return "\n".join(lines)


def pages() -> dict[Path, str]:
    """The pages with their tables as they should be."""
    made: dict[Path, str] = {}
    for kind, found in collected().found.items():
        path = FOLDER / f"{kind.replace(' ', '-')}.md"
        before, rest = path.read_text().split(BEGIN)
        made[path] = f"{before}{BEGIN}\n{tables(found)}\n{END}{rest.split(END)[1]}"
    return made


if __name__ == "__main__":
    made = pages()
    if "--check" in sys.argv:
        old = [path.name for path, text in made.items() if path.read_text() != text]
        sys.exit(f"{', '.join(old)}: write them again: python tests/brought_page.py" if old else 0)
    for path, text in made.items():
        path.write_text(text)
