"""Writes the tables of docs/how-to/inputs.md: ``python tests/brought_page.py``."""

from __future__ import annotations

import contextlib
import io
import sys
from pathlib import Path

import pytest

from brought import KINDS

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "how-to" / "inputs.md"
BEGIN, END = "<!-- tests/brought_page.py writes the tables -->\n", "<!-- end of the tables -->\n"


class Rows:
    """A pytest plug-in that collects the marks."""

    def __init__(self) -> None:
        self.found: dict[str, set[tuple[str, str, str]]] = {kind: set() for kind in KINDS}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            for mark in item.iter_markers("brought"):
                kind, peer, what, refused = mark.args
                self.found[kind].add((peer, what, "refused" if refused else "right"))


def tables() -> str:
    """The rows of all marked tests, one table for each kind."""
    files = [str(one) for one in sorted(TESTS.rglob("test_*.py")) if "brought(" in one.read_text()]
    rows = Rows()
    with contextlib.redirect_stdout(io.StringIO()) as said:
        code = pytest.main(["--collect-only", "--quiet", "--numprocesses", "0", *files], plugins=[rows])
    if code:
        raise SystemExit(said.getvalue())
    lines: list[str] = []
    for kind, found in rows.found.items():
        lines += [f"## {kind.capitalize()}", "", "| of | input | here |", "|---|---|---|"]
        lines += [f"| {peer} | {what} | {outcome} |" for peer, what, outcome in sorted(found)]
        lines.append("")
    return "\n".join(lines)


def page() -> str:
    """The page with its tables as they should be."""
    before, rest = PAGE.read_text().split(BEGIN)
    return f"{before}{BEGIN}\n{tables()}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(PAGE.read_text() != page() and "write it again: python tests/brought_page.py")
    PAGE.write_text(page())
