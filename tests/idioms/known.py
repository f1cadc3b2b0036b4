"""Cells of the matrix that do not come out as they shall, yet.

A cell that is listed here and comes out right fails the test, so that this table cannot rot. It is to be empty.
"""

from __future__ import annotations

WAITING: list[tuple[str, str, list[tuple[str, str]]]] = []
"""(the point of the issue that they wait for, names of idioms, cells). Whoever mends one takes it out."""

KNOWN = {(name, *cell): point for point, names, cells in WAITING for name in names.split() for cell in cells}
