"""Events that happen to the nodes of a cluster, and to the links between its sites."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

from uneven.cluster.pure.describe.spec_checks import LEAST, POSITIVE_TIME, Count, Positive, Time, bounded
from uneven.errors import ConfigError
from uneven.policy.core.tables import check


class Do(Enum):
    """The kinds of events. ``CUT_LINK`` applies to nodes and to links between sites, the others to nodes."""

    SLOW = "slow"  # its share of processor time is multiplied by ``factor``
    CUT_LINK = "cut_link"  # its bandwidth, both ways, is multiplied by ``factor`` or becomes ``bit_per_s``
    STOP = "stop"  # its worker is suspended for a while, without notice
    KILL = "kill"  # its worker dies without notice
    LEAVE = "leave"  # its worker leaves, with notice
    JOIN = "join"  # a worker starts there; a node whose first such event is a join is not a member before it


COMINGS_AND_GOINGS = frozenset({Do.KILL, Do.LEAVE, Do.JOIN})


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An event at one node or one link, at a time or when an iteration starts."""

    do: Do
    node: str = ""  # its name; "" for a link
    between: tuple[str, str] | None = None  # the sites that the link joins, in any order; None for a node
    # at_s, at_iteration: exactly one of them
    at_s: Time | None = None
    at_iteration: Count | None = None
    # for ``slow`` and ``cut_link``: the remaining part, above 0 and at most 1; 0 for a temporary cut
    factor: float | None = None
    bit_per_s: Positive | None = None  # for ``cut_link``: the remaining bandwidth, instead of a factor
    for_s: float = math.inf  # duration of a slow-down, cut or stop; infinite is permanent

    def __post_init__(self) -> None:
        where = f"event {self.do.value!r} of {self.where}"
        if bool(self.node) == (self.between is not None):
            raise ConfigError(f"event {self.do.value!r} needs either a node, or two sites in between")
        if self.between is not None and self.do is not Do.CUT_LINK:
            raise ConfigError(f"{where}: between two sites the only event is cut_link; for this event give a node")
        if (self.at_s is None) == (self.at_iteration is None):
            what = "no at_s and no at_iteration" if self.at_s is None else "both at_s and at_iteration"
            raise ConfigError(f"{where} has {what}: give one of the two, as at_s = 30 or at_iteration = 150")
        check(self, f"{where}: ")
        given = {key for key in ("factor", "bit_per_s") if getattr(self, key) is not None}
        if math.isfinite(self.for_s):
            given.add("for_s")
        fits = {
            Do.SLOW: {"factor", "for_s"},
            Do.CUT_LINK: {"factor", "bit_per_s", "for_s"},
            Do.STOP: {"for_s"},
        }.get(self.do, set())
        if given - fits:
            raise ConfigError(f"{where}: {', '.join(sorted(given - fits))} does not apply to this event: leave it out")
        if self.do is Do.STOP and "for_s" not in given:
            raise ConfigError(
                f"{where} needs for_s, the length of the pause in seconds; to stop the node for good, use 'kill'"
            )
        if "factor" in fits and len(given - {"for_s"}) != 1:
            raise ConfigError(
                f"{where} needs {' or '.join(sorted(fits - {'for_s'}))}, the remaining speed or rate, as factor = 0.5"
            )
        for_a_while = self.do is Do.CUT_LINK and math.isfinite(self.for_s)
        if self.factor is not None and not LEAST <= self.factor <= 1 and not (self.factor == 0 and for_a_while):
            hint = "; to cut a link to 0 for some time, give for_s" if self.factor == 0 else ""
            raise ConfigError(
                f"{where}: factor = {self.factor!r}: give the remaining part, above 0 and at most 1{hint}"
            )
        if self.for_s != math.inf:
            bounded(f"{where}: for_s", self.for_s, POSITIVE_TIME)

    @property
    def of(self) -> str | frozenset[str]:
        return self.node if self.between is None else frozenset(self.between)

    @property
    def where(self) -> str:
        return f"node {self.node!r}" if self.between is None else f"the line between {' and '.join(self.between)}"

    @property
    def left(self) -> float:
        return 1.0 if self.factor is None else self.factor


def disorder(events: list[Event]) -> Iterator[str]:
    """Yield the errors in the joins and leaves of one node, which must be listed in order of time."""
    for before, after in pairwise(events):
        if (before.do is Do.JOIN) == (after.do is Do.JOIN):
            yield f"{after.do.value!r} follows {before.do.value!r}: a node joins and leaves in turn"
    for key in ("at_s", "at_iteration"):
        times = [time for event in events if (time := getattr(event, key)) is not None]
        if any(left >= right for left, right in pairwise(times)):
            yield f"{key} is {times}: list its join, leave and kill in the order in which they happen"
