"""What happens to the nodes of a cluster. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

from uneven.cluster.checks import LEAST, not_negative, positive
from uneven.errors import ConfigError


class Do(Enum):
    """What can happen to a node."""

    SLOW = "slow"  # its share of processor time is multiplied by ``factor``
    CUT_LINK = "cut_link"  # its bandwidth, both ways, is multiplied by ``factor`` or becomes ``bit_per_s``
    KILL = "kill"  # its worker dies without a word
    LEAVE = "leave"  # its worker goes, and says so
    JOIN = "join"  # a worker starts there; a node whose first such event is a join is not a member before it


COMINGS_AND_GOINGS = frozenset({Do.KILL, Do.LEAVE, Do.JOIN})


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happens to one node, at a time or when an iteration starts.

    Attributes:
        at_s, at_iteration: one of them.
        factor: for ``slow`` and ``cut_link``: what is left, above 0 and at most 1.
        bit_per_s: for ``cut_link``: what is left, instead of a factor.
        for_s: how long a slow-down or a cut lasts; infinite is for good.

    Raises:
        ConfigError: values that do not go together.
    """

    do: Do
    node: str
    at_s: float | None = None
    at_iteration: int | None = None
    factor: float | None = None
    bit_per_s: float | None = None
    for_s: float = math.inf

    def __post_init__(self) -> None:
        where = f"event {self.do.value!r} of node {self.node!r}"
        if (self.at_s is None) == (self.at_iteration is None):
            what = "neither at_s nor at_iteration" if self.at_s is None else "both at_s and at_iteration"
            raise ConfigError(f"{where} has {what}: say one, as at_s = 30 or at_iteration = 150")
        not_negative(where, "at_s", self.at_s or 0.0)
        not_negative(where, "at_iteration", self.at_iteration or 0)
        given = {key for key in ("factor", "bit_per_s") if getattr(self, key) is not None}
        if math.isfinite(self.for_s):
            given.add("for_s")
        fits = {Do.SLOW: {"factor", "for_s"}, Do.CUT_LINK: {"factor", "bit_per_s", "for_s"}}.get(self.do, set())
        if given - fits:
            raise ConfigError(f"{where}: {', '.join(sorted(given - fits))} does not go with it: leave it out")
        if fits and len(given - {"for_s"}) != 1:
            raise ConfigError(
                f"{where} needs {' or '.join(sorted(fits - {'for_s'}))}: how much is left, as factor = 0.5"
            )
        if self.factor is not None and not LEAST <= self.factor <= 1:
            raise ConfigError(f"{where}: factor = {self.factor!r}: it is what is left, above 0 and at most 1")
        if self.bit_per_s is not None:
            positive(where, "bit_per_s", self.bit_per_s)
        if self.for_s != math.inf:
            positive(where, "for_s", self.for_s)


def disorder(events: list[Event]) -> Iterator[str]:
    """What is wrong with the comings and goings of one node; they are listed as they happen."""
    for before, after in pairwise(events):
        if (before.do is Do.JOIN) == (after.do is Do.JOIN):
            yield f"{after.do.value!r} follows {before.do.value!r}: a node joins and goes by turns"
    for key in ("at_s", "at_iteration"):
        times = [time for event in events if (time := getattr(event, key)) is not None]
        if any(left >= right for left, right in pairwise(times)):
            yield f"{key} is {times}: list its join, leave and kill in the order in which they happen"
