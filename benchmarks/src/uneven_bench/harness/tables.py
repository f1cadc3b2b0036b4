"""Tables of a result. Their words are the keys of ``--json``, which the pages of measurements explain.

Each mapping with figures is a row. Rows in the same place with much the same keys are one table. Its title is the part
of their paths that they share.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

from rich.box import SIMPLE_HEAD
from rich.table import Table

_MOST = 24  # rows of a table, and rows of a list; of longer lists only their length is shown
_NUMBERS = 8  # of a list that is shown
_LEAST_ALIKE = 0.5  # the common part of the keys of rows in one table
_COLUMNS = 10
_UNTOLD = ("said",)  # output of other programs


class ResultRow(NamedTuple):
    """Figures of a result, and the keys that lead there."""

    path: tuple[str, ...]
    figures: dict[str, Any]


def tables(result: Mapping[str, Any], bars: Mapping[str, str] | None = None) -> list[Table]:
    """Return the tables of a result, the outermost figures last. ``bars``: key of a figure → its bar in words."""
    found = []
    for group in _grouped(_rows((), result)):
        firsts: list[tuple[str, ...]] = [()]
        if len(group) > _MOST:
            upto = len(_common([row.path for row in group])) + 1
            firsts = list(dict.fromkeys(row.path[:upto] for row in group))
        for first in firsts:
            part = [row for row in group if row.path[: len(first)] == first]
            found.append(_table(part, bars or {}) if len(part) > 1 else _list(part[0], bars or {}))
    return found


def _list(row: ResultRow, bars: Mapping[str, str]) -> Table:
    """Return a table with a line for each figure."""
    lines = [(_words(key), _cell((*row.path, key), value), bars.get(key, "")) for key, value in row.figures.items()]
    width = 3 if any(bar for *_, bar in lines) else 2
    return table_of(_title(row.path), ("", "figure", "bar")[:width], [line[:width] for line in lines])


def _table(rows: Sequence[ResultRow], bars: Mapping[str, str]) -> Table:
    """Return one table of rows; their keys are the columns, or the lines if there are too many."""
    common = _common([row.path for row in rows])
    names = [_title(row.path[len(common) :]) for row in rows]
    keys = list(dict.fromkeys(key for row in rows for key in row.figures))
    cells = [[_cell((*row.path, key), row.figures[key]) if key in row.figures else "" for key in keys] for row in rows]
    columns = [f"{_words(key)} ({bars[key]})" if key in bars else _words(key) for key in keys]
    if len(keys) > max(_COLUMNS, len(rows)):
        columns, names, cells = names, columns, [list(line) for line in zip(*cells, strict=True)]
    lines = [(name, *line) for name, line in zip(names, cells, strict=True)]
    return table_of(_title(common), ("", *columns), lines, collapse_padding=True, pad_edge=False)


def _rows(path: tuple[str, ...], of: Mapping[str, Any]) -> Iterator[ResultRow]:
    """Yield all mappings that have figures, the inner ones first."""
    deeper: dict[str, Mapping[str, Any]] = {}
    figures = {}
    for key, value in of.items():
        if isinstance(value, Mapping):
            deeper[str(key)] = value
        elif isinstance(value, list) and value and isinstance(value[0], Mapping) and len(value) <= _MOST:
            deeper[key] = {str(place): one for place, one in enumerate(value, 1)}
        elif key not in _UNTOLD:
            figures[str(key)] = value
    for key, value in deeper.items():
        yield from _rows((*path, key), value)
    if figures:
        yield ResultRow(path, figures)


def _grouped(rows: Iterator[ResultRow]) -> list[list[ResultRow]]:
    groups: list[list[ResultRow]] = []
    for row in rows:
        group = next((one for one in groups if _alike(one[0], row)), None)
        if group is None:
            groups.append([row])
        else:
            group.append(row)
    return groups


def _alike(one: ResultRow, other: ResultRow) -> bool:
    keys = one.figures.keys() & other.figures.keys()
    same = len(one.path) == len(other.path) and (len(one.path) == 1 or one.path[0] == other.path[0])
    return same and len(keys) > _LEAST_ALIKE * len(one.figures.keys() | other.figures.keys())


def _common(paths: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(parts[0] for parts in takewhile(lambda parts: len({*parts}) == 1, zip(*paths, strict=False)))


def _title(path: Sequence[str]) -> str:
    return ", ".join(map(_words, path))


def _words(key: str) -> str:
    return key.replace("_", " ")


def _cell(path: Sequence[str], value: Any) -> str:
    """Return a figure in words; the last key that ends with a unit gives its unit."""
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if value is None:
        return "–"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return _measured(path, value)
    if isinstance(value, list | tuple):
        if len(value) == 3 and all(isinstance(one, float) for one in value) and value[1] <= value[0] <= value[2]:
            middle, low, high = value
            return f"{middle:.3g}" + f" [{low:.3g} … {high:.3g}]" * (high > low)
        if len(value) > _NUMBERS or any(isinstance(one, list | tuple | Mapping) for one in value):
            return f"{len(value)} values"
        return ("\n" if any(isinstance(one, str) for one in value) else ", ").join(_cell(path, one) for one in value)
    return str(value)


def _measured(path: Sequence[str], value: float) -> str:
    unit = next((end for key in reversed(path) for end in ("per_s", "_s", "_bytes", "_us") if key.endswith(end)), "")
    if unit == "_s":
        return f"{value:,.1f} s" if abs(value) >= 1 else f"{1e3 * value:.3g} ms"
    if unit == "_bytes":
        return f"{value / 1e6:,.3g} MB"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def table_of(title: str, columns: Iterable[str], rows: Iterable[Sequence[Any]] = (), **more: Any) -> Table:
    """Return a table for people: the first column to the left, the others to the right. ``more``: as rich's table takes
    it."""
    found = Table(title=title, box=SIMPLE_HEAD, **more)
    for place, column in enumerate(columns):
        found.add_column(column, justify="right" if place else "left")
    for row in rows:
        found.add_row(*map(str, row))
    return found
