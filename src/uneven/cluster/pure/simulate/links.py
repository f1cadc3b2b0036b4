"""Links with fair shares for concurrent transfers.

A transfer is one :class:`Flow` with any number of links: a ring all-reduce loads the links of all its members, and
the slowest of them limits it. Rates are max-min fair: raising one would lower another that is not higher
(Bertsekas and Gallager, Data Networks, §6.5.2).
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from uneven.cluster.pure.describe.spec import Trace
from uneven.cluster.pure.simulate.event_queue import Action, EventQueue, Handle
from uneven.errors import ConfigError

_MOST_LOOKS = 20_000  # changes of a bandwidth within one transfer [default]
_SAME = 1e-12  # relative difference up to which two links are full at the same level


class LinkLoad:
    """The load of each link by a kind of transfer; immutable, shared by many flows. ``most``: the most bytes of the
    transfer in a second, because of the limits of single connections."""

    def __init__(self, parts: dict[int, float], most: float = math.inf) -> None:
        self.fullest = max(parts.values(), default=0.0)  # bytes on the most loaded link per byte of the transfer
        self.links = np.fromiter(parts, np.intp, len(parts))  # positions, each once
        self.most = most * self.fullest if self.fullest else math.inf  # bytes/s on the most loaded link
        # Relative to the most loaded link, 0 … 1, so that a flow's rate is that on its most loaded link.
        self.weights = np.fromiter(parts.values(), float, len(parts)) / (self.fullest or 1.0)


class Route(NamedTuple):
    """A kind of transfer: its links, and the time from its last byte's departure to its arrival."""

    load: LinkLoad
    latency_s: float

    def times(self, many: int) -> "Route":
        """Return the route of a transfer that replaces ``many``, one after the other."""
        return Route(self.load, many * self.latency_s)


class Flow:
    """A transfer in progress."""

    __slots__ = ("arguments", "end_s", "landing", "latency_s", "left_bytes", "load", "on_done", "rate")

    def __init__(self, route: Route, size_bytes: float, on_done: Action, arguments: tuple[Any, ...]) -> None:
        self.load, self.latency_s = route
        self.left_bytes = size_bytes * self.load.fullest  # on the most loaded link
        self.on_done = on_done
        self.arguments = arguments
        self.rate = 0.0  # bytes/s there
        self.end_s = math.inf  # at this rate
        self.landing: Handle | None = None  # the event of its arrival, once its last byte has left


def fair_rates(loads: Sequence[LinkLoad], capacities: npt.NDArray[np.float64]) -> list[float]:
    """Return max-min fair rates at each flow's most loaded link, by progressive filling; ``capacities`` is (links,).

    A flow without links has an infinite rate.
    """
    if len(loads) == 1 and len(loads[0].links):
        return [min(float((capacities[loads[0].links] / loads[0].weights).min()), loads[0].most)]
    # All rates rise together until a link is full; its flows stay at that level, the others continue to rise. One
    # entry for each link of each flow: flow, link and weight.
    rates = np.full(len(loads), np.inf)
    flows = np.repeat(np.arange(len(loads)), [len(load.links) for load in loads])
    links = np.concatenate([load.links for load in loads])
    weights = np.concatenate([load.weights for load in loads])
    most = np.repeat([load.most for load in loads], [len(load.links) for load in loads])
    left = capacities.copy()
    while len(flows):
        total = np.bincount(links, weights, len(capacities))
        levels = np.divide(left, total, out=np.full(len(left), np.inf), where=total > _SAME)
        level = max(min(float(levels.min()), float(most.min())), 0.0)
        same = level * (1 + _SAME) + _SAME
        held = np.zeros(len(loads), bool)
        held[flows[(levels <= same)[links] | (most <= same)]] = True
        rates[held] = level
        stays = held[flows]
        left -= level * np.bincount(links[stays], weights[stays], len(capacities))
        flows, links, weights, most = flows[~stays], links[~stays], weights[~stays], most[~stays]
    return list(rates.tolist())


class Network:
    """All limited links and all flows; ``capacities`` are bit/s over time."""

    def __init__(self, queue: EventQueue, capacities: Sequence[Trace]) -> None:
        self._queue = queue
        self._traces = list(capacities)
        self._cuts: list[list[tuple[float, float]]] = [[] for _ in capacities]  # factor, ceiling in bit/s
        self._moving = [link for link, trace in enumerate(capacities) if not trace.constant]
        self._capacities = np.array([trace.at(0.0) / 8 for trace in capacities], float)
        self._flows: list[Flow] = []
        self._since_s = 0.0
        self._event: Handle | None = None
        self._looks = 0  # since the last end of a transfer
        self._stale = False
        # Of the transfers started, (links,) each.
        self.carried_bytes = np.zeros(len(capacities))
        self.carried = np.zeros(len(capacities), dtype=np.int64)

    def start(self, route: Route, size_bytes: float, on_done: Action, *arguments: Any) -> Flow:
        """Start a transfer of ``size_bytes``; ``on_done`` is called at its end, never within this call."""
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
        """Cancel a transfer, also one whose last bytes are in transit; a finished one is ignored."""
        self._queue.cancel(flow.landing)
        if flow in self._flows:
            self._advance()
            self._flows.remove(flow)
            self._restart()

    def cut(self, link: int, factor: float, ceiling_bit_per_s: float) -> None:
        """Limit a link to ``factor`` of its bandwidth and to the ceiling, on top of other cuts."""
        self._change(link, (factor, ceiling_bit_per_s), self._cuts[link].append)

    def mend(self, link: int, factor: float, ceiling_bit_per_s: float) -> None:
        self._change(link, (factor, ceiling_bit_per_s), self._cuts[link].remove)

    def _change(self, link: int, cut: tuple[float, float], how: Callable[[tuple[float, float]], None]) -> None:
        self._advance()
        how(cut)
        self._capacities[link] = self._capacity(link)
        self._restart()

    def _capacity(self, link: int) -> float:
        bits = self._traces[link].at(self._queue.now_s)
        for factor, ceiling in self._cuts[link]:
            bits = min(bits * factor, ceiling)
        return bits / 8

    def _advance(self) -> None:
        passed_s = self._queue.now_s - self._since_s
        if passed_s > 0.0:
            for flow in self._flows:
                flow.left_bytes -= flow.rate * passed_s
        self._since_s = self._queue.now_s

    def _restart(self) -> None:
        # Recompute once after all events of this moment: many transfers start together, and each would change every
        # rate.
        if not self._stale:
            self._stale = True
            self._queue.cancel(self._event)
            self._event = self._queue.at(self._queue.now_s, self._settle)

    def _look(self) -> None:
        self._advance()
        now_s = self._queue.now_s
        # Called when a flow ends or a capacity changes.
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
