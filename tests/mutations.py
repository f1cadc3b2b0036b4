"""Damaged plain data, the same for the same seed: one place of it changed, removed or doubled."""

from __future__ import annotations

import copy
import json
import math
import random
from collections.abc import Iterator
from typing import Any

STRANGE: tuple[Any, ...] = (
    None, True, "", "x", "nan", "\x1b]0;owned\x07", "\ud800", [], {}, [None], [[1]], {"a": 1}, 0, -1, 3, 0.5, -0.5,
    1e308, -1e308, math.nan, math.inf, 2**62, 10**30, -(10**30),
)  # fmt: skip
"""What stands in the place of something else."""

_DEEP = 120_000


def places(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to everything inside of nested lists and dicts."""
    inside = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in inside:
        yield (*path, key)
        yield from places(value, (*path, key))


def mutated(data: Any, dice: random.Random) -> tuple[Any, str]:
    """A copy with one change, and what it is."""
    data = copy.deepcopy(data)
    *way, last = dice.choice(list(places(data)))
    inner = data
    for step in way:
        inner = inner[step]
    where = "/".join(map(str, (*way, last)))
    if dice.random() < 0.15:
        del inner[last]
        return data, f"without {where}"
    if dice.random() < 0.1 and isinstance(inner, list):
        inner.insert(last, inner[last])
        return data, f"{where} twice"
    inner[last] = dice.choice(STRANGE)
    return data, f"{where} = {inner[last]!r}"


def mutated_line(row: Any, dice: random.Random) -> tuple[str, str]:
    """The same, as a line of JSON, or one that is nested too deeply."""
    if dice.random() < 0.02:
        return "[" * _DEEP + "]" * _DEEP, "nested"
    data, what = mutated(row, dice)
    return json.dumps(data), what
