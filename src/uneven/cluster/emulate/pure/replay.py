"""The replay of a cluster's traces and events as settings over time.

The caller asks :meth:`Replay.advance` for changes at a time, and may sleep until :meth:`Replay.next_s`.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from enum import Enum

from uneven.cluster.pure.describe.spec import ClusterSpec, Do, Event, Node, SiteLink, Trace


class Quantity(Enum):
    """The settings of a node, or of one direction of a link between sites; the values are the units."""

    CORES = "cores"
    LOAD = "busy processes"
    UP = "bit/s up"
    DOWN = "bit/s down"
    LATENCY = "s one way"
    STOPPED = "1 while stopped"
    ALONG = "bit/s along a line"


ON_LINKS = frozenset({Quantity.UP, Quantity.DOWN, Quantity.LATENCY})
"""The settings of a node's link, independent of its worker."""

Direction = tuple[str, str]  # From one site to another


@dataclass(frozen=True, slots=True)
class Setting:
    """A new value of a quantity; an infinite bandwidth is unlimited, and one of 0 blocks all."""

    of: str | Direction  # a node, by its name, or a direction of a link
    quantity: Quantity
    value: float


@dataclass(frozen=True, slots=True)
class Happening:
    """The start of an event. The caller starts and ends workers; the settings include the rest."""

    event: Event
    at_s: float


Change = Setting | Happening


class Replay:
    """A single pass through a description, forward in time; time 0 is the start of the training."""

    def __init__(self, spec: ClusterSpec) -> None:
        self._spec = spec
        self._begun_s: dict[int, float] = {}
        self._settings: dict[tuple[str | Direction, Quantity], float] = {}

    def advance(self, time_s: float, finished: Mapping[str, int]) -> list[Change]:
        """Return the changes since the last call; at the first call, everything. Events come first, then links.

        ``finished`` maps nodes to iterations that their workers have finished; iteration k starts when k are finished.
        """
        changes: list[Change] = list(self._begin(time_s, finished))
        for setting in self._all(time_s):
            if self._settings.get((setting.of, setting.quantity)) != setting.value:
                self._settings[setting.of, setting.quantity] = setting.value
                changes.append(setting)
        return changes

    def now(self, of: str) -> list[Setting]:
        return [Setting(name, quantity, value) for (name, quantity), value in self._settings.items() if name == of]

    def next_s(self, time_s: float) -> float:
        """Return the first time after ``time_s`` at which something changes by the clock; infinite if nothing will."""
        parts: tuple[Node | SiteLink, ...] = (*self._spec.nodes, *self._spec.links)
        times = [trace.next_change_s(time_s) for part in parts for trace in _traces(part)]
        for index, event in enumerate(self._spec.events):
            if index in self._begun_s:
                times.append(self._begun_s[index] + event.for_s)
            elif event.at_s is not None:
                times.append(event.at_s)
        return min((time for time in times if time > time_s), default=math.inf)

    def pending(self) -> list[Event]:
        return [event for index, event in enumerate(self._spec.events) if index not in self._begun_s]

    def _begin(self, time_s: float, finished: Mapping[str, int]) -> Iterator[Happening]:
        for index, event in enumerate(self._spec.events):
            if index in self._begun_s:
                continue
            if event.at_s is not None and event.at_s <= time_s:
                self._begun_s[index] = event.at_s
            elif event.at_iteration is not None and event.at_iteration <= self._finished(event, finished):
                self._begun_s[index] = time_s
            else:
                continue
            yield Happening(event, time_s)

    @staticmethod
    def _finished(event: Event, finished: Mapping[str, int]) -> int:
        """Return the finished iterations of an event's node; for a link or a newcomer, the largest of all nodes."""
        own = event.node and event.do is not Do.JOIN
        return finished.get(event.node, 0) if own else max(finished.values(), default=0)

    def _all(self, time_s: float) -> Iterator[Setting]:
        for link in self._spec.links:
            active = self._active(time_s, link.ends)
            for direction in (link.between, link.between[::-1]):
                yield Setting(direction, Quantity.ALONG, _left(link.toward(direction[1]), time_s, active))
                yield Setting(direction, Quantity.LATENCY, link.latency_s)
        for node in self._spec.nodes:
            for quantity, value in _values(node, time_s, self._active(time_s, node.name)):
                yield Setting(node.name, quantity, value)

    def _active(self, time_s: float, of: str | frozenset[str]) -> list[Event]:
        return [
            event
            for index, event in enumerate(self._spec.events)
            if event.of == of and index in self._begun_s and time_s < self._begun_s[index] + event.for_s
        ]


def _values(node: Node, time_s: float, active: list[Event]) -> Iterator[tuple[Quantity, float]]:
    slowed = math.prod(event.left for event in active if event.do is Do.SLOW)
    yield Quantity.CORES, node.cores * node.share.at(time_s) * slowed
    yield Quantity.LOAD, node.load.at(time_s)
    yield Quantity.UP, _left(node.up_bit_per_s, time_s, active)
    yield Quantity.DOWN, _left(node.down_bit_per_s, time_s, active)
    yield Quantity.LATENCY, node.latency_s
    yield Quantity.STOPPED, float(any(event.do is Do.STOP for event in active))


def _left(trace: Trace | None, time_s: float, active: list[Event]) -> float:
    bandwidth = math.inf if trace is None else trace.at(time_s)
    for event in active:
        if event.do is Do.CUT_LINK:
            # A cut to 0 is 0 also if the bandwidth is infinite, because ∞ · 0 is NaN.
            rest = bandwidth * event.left if event.left else 0.0
            bandwidth = rest if event.bit_per_s is None else event.bit_per_s
    return bandwidth


def _traces(part: Node | SiteLink) -> Iterator[Trace]:
    values = (getattr(part, one.name) for one in fields(part))
    return (value for value in values if isinstance(value, Trace))


def in_words(event: Event) -> str:
    """Return an event as text for the terminal and the journal: "node3: link cut to 10 Mbit/s for 5 s"."""
    left = "nothing" if not event.left else f"{event.left:g} of its bandwidth"
    how = {
        Do.SLOW: f"slowed down to {event.left:g} of its processor time",
        Do.CUT_LINK: f"link cut to {left if event.bit_per_s is None else f'{event.bit_per_s / 1e6:g} Mbit/s'}",
        Do.STOP: "stopped",
        Do.KILL: "killed",
        Do.LEAVE: "leaves",
        Do.JOIN: "joins",
    }[event.do]
    return f"{event.node or event.where}: {how}" + (f" for {event.for_s:g} s" if math.isfinite(event.for_s) else "")
