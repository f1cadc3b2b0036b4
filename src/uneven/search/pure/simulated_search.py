"""Simulate a search in virtual time: the same core, scheduler and placing, with known curves and costs."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from uneven.errors import ConfigError
from uneven.search.pure.core import SearchCore
from uneven.search.pure.decisions import Move, Ruling
from uneven.search.pure.dispatch import Dispatch
from uneven.search.pure.placing import Placer
from uneven.search.pure.trial_records import TrialRecord

Curves = Callable[[TrialRecord, float], float]
"""A trial and its training → the metric that it reports."""
Costs = Callable[[TrialRecord], float]
"""A trial → seconds for a unit of its training on a device of speed 1."""
Helps = Callable[[int], float]
"""A number of devices → the share of their summed speed at which they train one trial; 1 is without loss."""
Ends = Callable[[TrialRecord], float]
"""A trial → the training after which its function returns."""


@dataclass(frozen=True, slots=True)
class SimulatedSpan:
    trial: int
    device: int
    begin_s: float
    end_s: float


@dataclass(slots=True)
class SimulatedSearch:
    """The result of a simulation."""

    end_s: float = 0.0  # end of the last trial
    units: float = 0.0  # training of all trials together
    # every improvement: time, training of all trials until then, and best score
    bests: list[tuple[float, float, float]] = field(default_factory=list)
    spans: list[SimulatedSpan] = field(default_factory=list)

    @property
    def busy_s(self) -> float:
        return sum(span.end_s - span.begin_s for span in self.spans)

    def scored(self, at_s: float, score: float) -> None:
        if score > (self.bests[-1][2] if self.bests else -math.inf):
            self.bests.append((at_s, self.units, score))


def simulate(
    core: SearchCore,
    curves: Curves,
    *,
    speeds: Sequence[float] = (1.0,),
    costs: Costs = lambda trial: 1.0,
    ends: Ends = lambda trial: math.inf,
    helps: Helps = lambda devices: 1.0,
    placer: Placer | None = None,
    step: float = 1.0,
    most_units: float = math.inf,
) -> SimulatedSearch:
    """Simulate a search to its end, or until all trials together have trained `most_units`; trials report each `step`.

    Raises `ConfigError` if there are no devices, or a speed is not above zero.
    """
    if not speeds or not all(speed > 0 for speed in speeds):
        raise ConfigError(f"speeds={list(speeds)}: give at least one device, and each a speed above zero")
    pool = VirtualPool(core, tuple(speeds), costs, Dispatch(core, placer or Placer(), len(speeds)), step, helps)
    pool.fill()
    while pool.queue and pool.played.units < most_units:
        trial, devices, t, seconds = pool.next()
        metric = curves(trial, t)
        more = {"device": devices[0], "seconds": round(seconds, 6)} | ({"beside": devices[1:]} if devices[1:] else {})
        ruling = core.reported(trial.number, t, metric, more)
        pool.played.scored(pool.now_s, core.terms.sign * metric)
        if ruling.save:
            core.saved(trial.number, t)
        pool.settle(trial, devices, ruling, returns=t >= ends(trial))
        pool.fill()
    return pool.played


@dataclass(slots=True)
class VirtualPool:
    """The simulated pool of processes; its clock jumps from report to report."""

    core: SearchCore
    speeds: tuple[float, ...]
    costs: Costs
    dispatch: Dispatch
    step: float
    helps: Helps
    now_s: float = 0.0
    # running trials: time of the next report, devices, number, and t then
    queue: list[tuple[float, tuple[int, ...], int, float]] = field(default_factory=list)
    played: SimulatedSearch = field(default_factory=SimulatedSearch)
    _since_s: dict[int, float] = field(default_factory=dict)

    @property
    def running(self) -> dict[int, tuple[int, ...]]:
        return {number: devices for _, devices, number, _ in self.queue}

    def fill(self) -> None:
        for trial, devices in self.dispatch.starts(self.running, self._left_s, lambda trial: False):
            self._go(trial, devices)

    def next(self) -> tuple[TrialRecord, tuple[int, ...], float, float]:
        """Advance to the next report: return its trial, devices, training so far, and seconds since the last report."""
        self.now_s, devices, number, t = heapq.heappop(self.queue)
        trial = self.core.trials[number]
        took_s = self.step * self._unit_s(trial, devices)
        self.dispatch.placer.paces.measured(number, devices, self.step, took_s)
        self.played.units += self.step
        self.played.end_s = self.now_s
        return trial, devices, t, took_s

    def settle(self, trial: TrialRecord, devices: tuple[int, ...], ruling: Ruling, *, returns: bool) -> None:
        """Carry out the core's decision on a trial: continue here or elsewhere, wait, or leave.

        `returns` means that its function returns now, unless the decision ends it.
        """
        goes_on = ruling.move is Move.CONTINUE and ruling.clone is None
        if not goes_on or returns:
            self._leave(trial.number, devices)
            if goes_on:
                self.core.ended(trial.number)
            return
        running = {**self.running, trial.number: devices}
        there = self.dispatch.goes_on(trial.number, running, self._left_s)
        if set(there) == set(devices):
            self._go(trial, devices)
            return
        self._leave(trial.number, devices)
        self.dispatch.held.append(trial)

    def _go(self, trial: TrialRecord, devices: tuple[int, ...]) -> None:
        for device in devices:
            # A span covers several reports and ends when the trial leaves, so the first time stays.
            self._since_s.setdefault(device, self.now_s)
        at_s = self.now_s + self.step * self._unit_s(trial, devices)
        heapq.heappush(self.queue, (at_s, devices, trial.number, trial.t + self.step))

    def _leave(self, number: int, devices: tuple[int, ...]) -> None:
        for device in devices:
            self.played.spans.append(SimulatedSpan(number, device, self._since_s.pop(device), self.now_s))

    def _unit_s(self, trial: TrialRecord, devices: tuple[int, ...]) -> float:
        together = math.fsum(self.speeds[device] for device in devices)
        return self.costs(trial) / (together * (self.helps(len(devices)) if len(devices) > 1 else 1.0))

    def _left_s(self, trial: int) -> float:
        ((at_s, devices, t),) = ((at_s, devices, t) for at_s, devices, number, t in self.queue if number == trial)
        return at_s - self.now_s + self.core.left(trial, t) * self.dispatch.placer.paces.unit_s(trial, *devices)
