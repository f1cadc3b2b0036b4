"""Checks that the parts of a description share."""

from collections import Counter
from collections.abc import Iterable
from typing import Annotated

from uneven.errors import ConfigError
from uneven.policy.core.plain import Range
from uneven.policy.core.tables import shown


def once(what: str, names: Iterable[str]) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise ConfigError(f"{what} {twice[0]!r} occurs more than once: give each its own name")


LEAST, MOST = 1e-18, 1e18  # the bounds of positive values, so that products and quotients are finite
LONGEST_S = 1e9  # the longest time, 31 years: in sums of such times a float still resolves microseconds


def _from(least: float, most: float) -> Range:
    return Range(
        least, most, f"positive, from {least:g} to {most:g}" if least else f"zero or more, and at most {most:g}"
    )


POSITIVE, POSITIVE_TIME, TIME = _from(LEAST, MOST), _from(LEAST, LONGEST_S), _from(0, LONGEST_S)

Amount = Annotated[float, _from(0, MOST)]
Count = Annotated[int, _from(0, MOST)]
Positive = Annotated[float, POSITIVE]
PositiveTime = Annotated[float, POSITIVE_TIME]
Several = Annotated[int, POSITIVE]
Time = Annotated[float, TIME]


def bounded(what: str, value: float, bound: Range) -> None:
    if not bound.allows(value):
        raise ConfigError(f"{what} = {shown(value)}: it must be {bound}")
