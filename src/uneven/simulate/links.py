"""Links that transfers share fairly. Pure.

A transfer is one :class:`Flow` however many links it loads: a ring all-reduce loads the links of all its members
at once, and its slowest link holds all of it back. Rates are max-min fair: nobody's can be raised without lowering
that of somebody who has no more (Bertsekas and Gallager, Data Networks, §6.5.2).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from uneven.cluster.spec import Trace
from uneven.errors import ConfigError
from uneven.simulate.events import Action, EventQueue, Handle

_MOST_LOOKS = 20_000
"""Changes of a bandwidth within one transfer; ours."""

_SAME = 1e-12
"""Relative difference up to which two links are full at the same level."""


class LinkLoad:
    """Which links a kind of transfer loads, and how much. Made once, used by many flows.

    Attributes:
        links: positions of the links, each once.
        weights: load of each, relative to the most loaded one, above 0, at most 1.
        fullest: what the most loaded link carries of each byte that is to be transferred.
    """

    def __init__(self, parts: dict[int, float]) -> None:
        self.fullest = max(parts.values(), default=0.0)
        self.links = np.fromiter(parts, np.intp, len(parts))
        self.weights = np.fromiter(parts.values(), float, len(parts)) / (self.fullest or 1.0)


class Route(NamedTuple):
    """A kind of transfer: the links that it loads, and the time from its last byte's departure to its arrival."""

    load: LinkLoad
    latency_s: float


class Flow:
    """A transfer under way.

    Attributes:
        left_bytes: what the most loaded link still has to carry.
        rate: bytes/s there.
        end_s: when it is over at this rate.
        landing: the appointment at its end, once its last byte has departed.
    """

    __slots__ = ("arguments", "end_s", "landing", "latency_s", "left_bytes", "load", "on_done", "rate")

    def __init__(self, route: Route, size_bytes: float, on_done: Action, arguments: tuple[Any, ...]) -> None:
        self.load, self.latency_s = route
        self.left_bytes = size_bytes * self.load.fullest
        self.on_done = on_done
        self.arguments = arguments
        self.rate = 0.0
        self.end_s = math.inf
        self.landing: Handle | None = None


def fair_rates(loads: Sequence[LinkLoad], capacities: npt.NDArray[np.float64]) -> list[float]:
    """Max-min fair rates, one for each flow, by progressive filling.

    All rates rise together until a link is full; those who use it stay there, the others go on rising. A rate is
    counted at the flow's most loaded link.

    Args:
        loads: of each flow; one that loads no link has an infinite rate.
        capacities: of each link; shape (links,).
    """
    if len(loads) == 1 and len(loads[0].links):
        return [float((capacities[loads[0].links] / loads[0].weights).min())]
    rates = [math.inf] * len(loads)
    rising = {place: load for place, load in enumerate(loads) if len(load.links)}
    total = np.zeros(len(capacities))
    for load in rising.values():
        total[load.links] += load.weights
    left = capacities.copy()
    while rising:
        levels = np.divide(left, total, out=np.full(len(left), np.inf), where=total > _SAME)
        level = float(levels.min())
        full = levels <= level * (1 + _SAME) + _SAME
        held = [place for place, load in rising.items() if full[load.links].any()]
        if not held:  # what rounding left over of a link that nobody uses any more
            total[full] = 0.0
        for place in held:
            load = rising.pop(place)
            rates[place] = max(level, 0.0)
            left[load.links] -= rates[place] * load.weights
            total[load.links] -= load.weights
    return rates


class Network:
    """All links and all flows.

    Links without a limit are not among them: nothing waits there.

    Args:
        queue: virtual time.
        capacities: of each link over time, bit/s.

    Attributes:
        carried_bytes, carried: of each link, bytes of the transfers that were begun over it, and their number.
    """

    def __init__(self, queue: EventQueue, capacities: Sequence[Trace]) -> None:
        self._queue = queue
        self._traces = list(capacities)
        self._cuts: list[list[tuple[float, float]]] = [[] for _ in capacities]  # factor, ceiling in bit/s
        self._moving = [link for link, trace in enumerate(capacities) if not trace.constant]
        self._capacities = np.array([trace.at(0.0) / 8 for trace in capacities], float)
        self._flows: list[Flow] = []
        self._since_s = 0.0
        self._event: Handle | None = None
        self._looks = 0  # since a transfer has ended
        self._stale = False
        self.carried_bytes = np.zeros(len(capacities))
        self.carried = np.zeros(len(capacities), dtype=np.int64)

    def start(self, route: Route, size_bytes: float, on_done: Action, *arguments: Any) -> Flow:
        """Begin a transfer of ``size_bytes``; ``on_done`` is called at its end, never within this call."""
        flow = Flow(route, size_bytes, on_done, arguments)
        self.carried_bytes[flow.load.links] += flow.left_bytes * flow.load.weights
        self.carried[flow.load.links] += 1
        if flow.left_bytes <= 0.0:
            flow.landing = self._queue.at(self._queue.now_s + flow.latency_s, on_done, *arguments)
        else:
            self._advance()
            self._flows.append(flow)
            self._restart()
        return flow

    def cancel(self, flow: Flow) -> None:
        """Break a transfer off, also one whose last bytes are still under way; one that is over is no matter."""
        self._queue.cancel(flow.landing)
        if flow in self._flows:
            self._advance()
            self._flows.remove(flow)
            self._restart()

    def cut(self, link: int, factor: float, ceiling_bit_per_s: float) -> None:
        """Leave ``factor`` of a link's bandwidth, and at most the ceiling, on top of other cuts."""
        self._change(link, (factor, ceiling_bit_per_s), self._cuts[link].append)

    def mend(self, link: int, factor: float, ceiling_bit_per_s: float) -> None:
        """A cut is over."""
        self._change(link, (factor, ceiling_bit_per_s), self._cuts[link].remove)

    def _change(self, link: int, cut: tuple[float, float], how: Callable[[tuple[float, float]], None]) -> None:
        self._advance()
        how(cut)
        self._capacities[link] = self._capacity(link)
        self._restart()

    def _capacity(self, link: int) -> float:
        """What a link can carry now, bytes/s."""
        bits = self._traces[link].at(self._queue.now_s)
        for factor, ceiling in self._cuts[link]:
            bits = min(bits * factor, ceiling)
        return bits / 8

    def _advance(self) -> None:
        """Account for what has been carried since the last change."""
        passed_s = self._queue.now_s - self._since_s
        if passed_s > 0.0:
            for flow in self._flows:
                flow.left_bytes -= flow.rate * passed_s
        self._since_s = self._queue.now_s

    def _restart(self) -> None:
        """Reckon the rates anew, once everything that happens at this moment has happened."""
        if not self._stale:
            self._stale = True
            self._queue.cancel(self._event)
            self._event = self._queue.at(self._queue.now_s, self._settle)

    def _look(self) -> None:
        """A flow has ended, or a capacity has changed."""
        self._advance()
        now_s = self._queue.now_s
        over = [flow for flow in self._flows if flow.end_s <= now_s]
        self._looks = 0 if over else self._looks + 1
        if self._looks > _MOST_LOOKS:
            raise ConfigError(
                f"bandwidth changes more than {_MOST_LOOKS:,} times during one transfer: give its trace a larger "
                f"step_s, or the workload fewer gradient_bytes"
            )
        if over:
            self._flows = [flow for flow in self._flows if flow.end_s > now_s]
        for flow in over:
            flow.landing = self._queue.at(now_s + flow.latency_s, flow.on_done, *flow.arguments)
        self._restart()

    def _settle(self) -> None:
        self._stale = False
        self._event = None
        if not self._flows:
            return
        now_s = self._queue.now_s
        for link in self._moving:
            self._capacities[link] = self._capacity(link)
        rates = fair_rates([flow.load for flow in self._flows], self._capacities)
        for flow, rate in zip(self._flows, rates, strict=True):
            flow.rate = rate
            flow.end_s = now_s + max(flow.left_bytes, 0.0) / rate if rate > 0.0 else math.inf
        next_s = min(flow.end_s for flow in self._flows)
        for link in self._moving:
            next_s = min(next_s, self._traces[link].next_change_s(now_s))
        self._event = self._queue.at(next_s, self._look)
