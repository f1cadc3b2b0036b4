"""What happens to the nodes of a cluster, and when: from the description to settings in time. Pure.

Whoever carries the settings out asks :meth:`Replay.advance` for what is new at a time, and may sleep until
:meth:`Replay.next_s`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from uneven.cluster.spec import ClusterSpec, Do, Event, Node, Trace


class Quantity(Enum):
    """What can be set on a node; the values are the units."""

    CORES = "cores"
    LOAD = "busy processes"
    UP = "bit/s up"
    DOWN = "bit/s down"


@dataclass(frozen=True, slots=True)
class Setting:
    """A node's quantity has this value from now on; an infinite bandwidth is not limited."""

    node: str
    quantity: Quantity
    value: float


@dataclass(frozen=True, slots=True)
class Happening:
    """An event begins; a kill is to be carried out, the others show in the settings."""

    event: Event
    at_s: float


Change = Setting | Happening


class Replay:
    """Goes through a description once, forwards in time.

    Args:
        spec: traces and events of its nodes are replayed; time 0 is the start of the training.
    """

    def __init__(self, spec: ClusterSpec) -> None:
        self._spec = spec
        self._begun_s: dict[int, float] = {}
        self._settings: dict[tuple[str, Quantity], float] = {}

    def advance(self, time_s: float, finished: Mapping[str, int]) -> list[Change]:
        """What has changed since the last call; at the first call, everything. Events come first.

        Args:
            time_s: not before that of the last call.
            finished: node → iterations that its worker has finished; iteration k starts when k are finished.
        """
        changes: list[Change] = list(self._begin(time_s, finished))
        for node in self._spec.nodes:
            for quantity, value in self._values(node, time_s):
                if self._settings.get((node.name, quantity)) != value:
                    self._settings[node.name, quantity] = value
                    changes.append(Setting(node.name, quantity, value))
        return changes

    def next_s(self, time_s: float) -> float:
        """First time after ``time_s`` at which something changes by the clock; infinite if nothing will."""
        times = [trace.next_change_s(time_s) for node in self._spec.nodes for trace in _traces(node)]
        for index, event in enumerate(self._spec.events):
            if index in self._begun_s:
                times.append(self._begun_s[index] + event.for_s)
            elif event.at_s is not None:
                times.append(event.at_s)
        return min((time for time in times if time > time_s), default=math.inf)

    @property
    def awaits_iterations(self) -> bool:
        """Whether an event that has not begun waits for an iteration."""
        return any(event.at_iteration is not None for event in self.pending())

    def pending(self) -> list[Event]:
        """Events that have not begun."""
        return [event for index, event in enumerate(self._spec.events) if index not in self._begun_s]

    def _begin(self, time_s: float, finished: Mapping[str, int]) -> Iterator[Happening]:
        for index, event in enumerate(self._spec.events):
            if index in self._begun_s:
                continue
            if event.at_s is not None and event.at_s <= time_s:
                self._begun_s[index] = event.at_s
            elif event.at_iteration is not None and event.at_iteration <= finished.get(event.node, 0):
                self._begun_s[index] = time_s
            else:
                continue
            yield Happening(event, time_s)

    def _values(self, node: Node, time_s: float) -> Iterator[tuple[Quantity, float]]:
        active = [
            event
            for index, event in enumerate(self._spec.events)
            if event.node == node.name
            and index in self._begun_s
            and time_s < self._begun_s[index] + event.for_s
        ]
        slowed = math.prod(_factor(event) for event in active if event.do is Do.SLOW)
        yield Quantity.CORES, node.cores * node.share.at(time_s) * slowed
        yield Quantity.LOAD, node.load.at(time_s)
        for quantity, trace in ((Quantity.UP, node.up_bit_per_s), (Quantity.DOWN, node.down_bit_per_s)):
            bandwidth = math.inf if trace is None else trace.at(time_s)
            for event in active:
                if event.do is Do.CUT_LINK:
                    bandwidth = event.bit_per_s if event.bit_per_s is not None else bandwidth * _factor(event)
            yield quantity, bandwidth


def _factor(event: Event) -> float:
    return 1.0 if event.factor is None else event.factor


def _traces(node: Node) -> Iterator[Trace]:
    yield from (node.share, node.load)
    yield from (trace for trace in (node.up_bit_per_s, node.down_bit_per_s) if trace is not None)


def in_words(event: Event) -> str:
    """An event for the terminal and the journal: "node3: link cut to 10 Mbit/s for 5 s"."""
    how = {
        Do.SLOW: f"slowed down to {_factor(event):g} of its processor time",
        Do.CUT_LINK: f"link cut to {_factor(event):g} of its bandwidth"
        if event.bit_per_s is None
        else f"link cut to {event.bit_per_s / 1e6:g} Mbit/s",
        Do.KILL: "killed",
        Do.LEAVE: "leaves",
        Do.JOIN: "joins",
    }[event.do]
    return f"{event.node}: {how}" + (f" for {event.for_s:g} s" if math.isfinite(event.for_s) else "")
