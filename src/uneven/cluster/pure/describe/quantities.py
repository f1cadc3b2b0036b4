"""The conversion of TOML values to traces and cost curves. Pure; the caller reads trace files."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from uneven.cluster.pure.describe.cluster_events import Do, Event
from uneven.cluster.pure.describe.trace import Measured, Saturating, Trace, steady
from uneven.errors import ConfigError, UnknownNameError
from uneven.policy.core.cost import Affine, Cost
from uneven.policy.core.tables import convert, hints, integer, items, known, located, number, required, table, text

_COLUMN: dict[Any, Callable[[Any], Any]] = {int | str: lambda one: one if isinstance(one, str) else integer(one)}
_TIMING = {"step_s": float, "speedup": float, "rotate": int}
INLINE_KEYS: dict[str, Any] = {"values": tuple[float, ...], "source": str, **_TIMING}
RECORDED_KEYS: dict[str, Any] = {
    **dict.fromkeys(("file", "key"), str),
    **dict.fromkeys(("row", "first", "steps"), int),
    **dict.fromkeys(("scale", "offset", "least", "most"), float),
    "rows": tuple[int, ...],
    "column": int | str,
    **_TIMING,
}
"""The keys of a quantity over time with values in the description, and of a recorded one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """One recorded series in a file."""

    file: str  # path of a ``.npy``, ``.npz`` or ``.csv`` file, as in the description
    key: str | None = None  # of the array, in a ``.npz`` file with several
    row: int | None = None  # of a two-dimensional array
    column: int | str | None = None  # number of a column of an array; name or number of a column of a CSV file

    def __str__(self) -> str:
        parts = {"key": self.key, "row": self.row, "column": self.column}
        return ", ".join([self.file, *(f"{name} {value}" for name, value in parts.items() if value is not None)])


ReadTrace = Callable[[Recorded], tuple[float, ...]]
"""The reader of a recorded series; it raises `ConfigError` if it fails."""


def trace(value: Any, read: ReadTrace, copy: int = 0, copies: int = 1) -> Trace:
    """Return the trace of a number, or of a table with ``values`` or ``file``. Raises ConfigError for anything else.
    ``copy`` is the number of this node among the ``copies`` of a table."""
    if not isinstance(value, dict):
        return steady(number(value))
    if ("values" in value) == ("file" in value):
        raise ConfigError('a quantity over time is a table with either values = [...] or file = "..."')
    keys = INLINE_KEYS if "values" in value else RECORDED_KEYS
    known(value, keys)
    value = {key: convert(keys[key], one, _COLUMN) for key, one in value.items()}
    if "values" in value:
        values, source = value["values"], value.get("source", "")
    else:
        series = _series(value, copy, copies)
        values, source = _rescaled(value, _window(value, read(series))), str(series)
    if len(values) > 1 and "step_s" not in value:
        raise ConfigError(f"{len(values)} values without step_s: give the seconds that each value lasts")
    timing = {key: value[key] for key in ("step_s", "speedup") if key in value}
    # Each copy of a node starts at another place in the series, so copies do not slow down at the same time.
    turn = value.get("rotate", 0) * copy % max(len(values), 1)
    return Trace(values=values[turn:] + values[:turn], source=source, **timing)


def _series(value: Mapping[str, Any], copy: int, copies: int) -> Recorded:
    if "row" in value and "rows" in value:
        raise ConfigError("give either row or rows")
    row, rows = value.get("row"), value.get("rows")
    if rows is not None:
        if len(rows) != copies:
            raise ConfigError(f"rows has {len(rows)} entries for {copies} node(s): give one for each of count")
        row = rows[copy]
    return Recorded(file=value["file"], key=value.get("key"), row=row, column=value.get("column"))


def _window(value: Mapping[str, Any], recorded: tuple[float, ...]) -> tuple[float, ...]:
    first = value.get("first", 0)
    steps = value.get("steps", len(recorded) - first)
    if first < 0 or steps < 1 or first + steps > len(recorded):
        raise ConfigError(f"first = {first} and steps = {steps} do not fit the {len(recorded)} recorded values")
    return recorded[first : first + steps]


def _rescaled(value: Mapping[str, Any], recorded: tuple[float, ...]) -> tuple[float, ...]:
    scale, offset = value.get("scale", 1.0), value.get("offset", 0.0)
    least, most = value.get("least", 0.0), value.get("most", math.inf)
    if least > most:
        raise ConfigError(f"least = {least} is above most = {most}")
    return tuple(min(max(offset + scale * one, least), most) for one in recorded)


def comings_and_goings(node: str, there: Trace, fewer: int = 0) -> Iterator[Event]:
    """Yield the joins and leaves of a node that is present while ``there`` is above ``fewer``; the trace is used once.
    Raises ConfigError if the node is never present."""
    here = [value > fewer for value in there.values]
    if not any(here):
        raise ConfigError(f"node {node!r} is never present, because no value is above {fewer}: leave the node out")
    for step, (before, now) in enumerate(pairwise(here), start=1):
        if before != now:
            yield Event(do=Do.JOIN if now else Do.LEAVE, node=node, at_s=step * there.lasts_s)


COSTS: dict[str, Callable[..., Cost]] = {"affine": Affine, "saturating": Saturating}


def cost(value: Any) -> Cost:
    """Return the cost curve of a table with a ``kind``: affine, saturating or measured; otherwise raise ConfigError.
    A number is the seconds of every batch."""
    if not isinstance(value, dict):
        return Affine(number(value), 0.0)
    given = dict(table(value))
    kind = text(required(given, "kind"))
    del given["kind"]
    if kind == "measured":
        known(given, ["points"])
        points = items(required(given, "points"), _point)
        return Measured(tuple(x for x, _ in points), tuple(y for _, y in points))
    if kind not in COSTS:
        raise UnknownNameError("kind of cost", kind, [*COSTS, "measured"])
    keys = hints(COSTS[kind])
    known(given, keys)
    parameters = {}
    for key in keys:
        with located(key):
            parameters[key] = number(required(given, key))
    return COSTS[kind](**parameters)


def _point(value: Any) -> tuple[int, float]:
    pair = items(value)
    if len(pair) != 2:
        raise ConfigError(f"{value!r} is not a point: write [samples, seconds], as [32, 0.02]")
    return integer(pair[0]), number(pair[1])
