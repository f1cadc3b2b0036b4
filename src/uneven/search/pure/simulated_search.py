"""Simulate a search in virtual time: the same core, scheduler and placing, with known curves and costs."""

import heapq
import math
import statistics
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from uneven.errors import ConfigError
from uneven.search.pure.core import SearchCore
from uneven.search.pure.decisions import Move, Ruling
from uneven.search.pure.paces import fitted
from uneven.search.pure.placing import Dispatch, Placer
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
) -> SimulatedSearch:
    """Simulate a search to its end; trials report each `step`.

    Raises `ConfigError` if there are no devices, or a speed is not above zero.
    """
    if not speeds or not all(speed > 0 for speed in speeds):
        raise ConfigError(f"speeds={list(speeds)}: give at least one device, and each a speed above zero")
    pool = VirtualPool(core, tuple(speeds), costs, Dispatch(core, placer or Placer(), len(speeds)), step, helps)
    pool.fill()
    while pool.queue:
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


_SWEEPS, _DOUBT = 100, 0.01
"""All is measured, so trials that ran on several devices determine the slowness of these with little regularization."""

AS_CHEAP = 0.05  # share above the lowest cost up to which searches count as equally cheap


@dataclass(frozen=True, slots=True)
class RecordedTrial:
    """The record of a trial: the training and the metrics of its reports, in order."""

    t: tuple[float, ...]
    metric: tuple[float, ...]
    unit_s: float  # on the fastest device of the record
    ended_t: float = math.inf  # when its function returned; infinite if it was stopped

    def metric_at(self, t: float) -> float:
        return self.metric[max(0, bisect_right(self.t, t) - 1)]


@dataclass(frozen=True, slots=True)
class SearchForecast:
    """The forecast of a search on a number of devices."""

    devices: int
    end_s: float
    capacity_s: float  # cost: end_s times the sum of the devices' speeds, used or not
    used: float  # share of the devices' time in which they train, 0 … 1
    units: float  # training of all trials together
    best: float  # score, higher is better


@dataclass(frozen=True, slots=True)
class SearchRecord:
    """The record of a search, which is replayed in virtual time to forecast the search on other devices.

    Rates and curves come from a finished or running search; scheduler, searcher and placing are the same objects. Trial
    n learns as trial n of the record did; trials beyond the record repeat earlier ones in turn. After its last recorded
    report a trial's metric is assumed constant, so a scheduler that trains it longer learns nothing new.
    """

    trials: Mapping[int, RecordedTrial]  # those that have reported
    step: float  # median training between two reports

    def like(self, trial: TrialRecord) -> RecordedTrial:
        found = self.trials.get(trial.number)
        return found or self.trials[sorted(self.trials)[trial.number % len(self.trials)]]

    def forecast(self, core: SearchCore, speeds: Sequence[float]) -> SearchForecast:
        played = self.play(core, speeds)
        best = max((score for *_, score in played.bests), default=math.nan)
        used = played.busy_s / (played.end_s * len(speeds)) if played.end_s else 0.0
        return SearchForecast(len(speeds), played.end_s, played.end_s * sum(speeds), used, played.units, best)

    def play(self, core: SearchCore, speeds: Sequence[float]) -> SimulatedSearch:
        """Simulate the same search with a new core on other devices; the fastest device of the record has speed 1.

        Raises `ConfigError` if the end of trials is unknown, or a device's speed is zero.
        """
        known = [one.ended_t for one in self.trials.values() if one.ended_t < math.inf]
        # Trials that a scheduler stopped have no known end; the usual one replaces it.
        usual = statistics.median(known) if known else core.left(0, 0.0)
        if math.isinf(usual):
            raise ConfigError(
                "no recorded trial has ended, and there is no max_t: record a longer search, or set max_t"
            )
        return simulate(
            core,
            lambda trial, t: self.like(trial).metric_at(t),
            speeds=speeds,
            step=self.step,
            costs=lambda trial: self.like(trial).unit_s,
            ends=lambda trial: self.like(trial).ended_t if self.like(trial).ended_t < math.inf else usual,
        )


def recorded(events: Sequence[Mapping[str, Any]]) -> SearchRecord:
    """Extract the record of each trial from a search's events. Raises `ConfigError` if no trial has reported."""
    curves: dict[int, dict[float, float]] = {}
    took_s: dict[tuple[int, int], list[float]] = {}
    ended: dict[int, float] = {}
    steps: list[float] = []
    for event in events:
        trial = event.get("trial", -1)
        curve = curves.setdefault(trial, {})
        # A resumed trial repeats reports, which must not count twice.
        if "metric" in event and event["t"] > max(curve, default=0.0):
            steps.append(event["t"] - max(curve, default=0.0))
            # Only reports from single devices, because the fit needs one device for each measurement.
            if "beside" not in event:
                took_s.setdefault((trial, event["device"]), []).append(event["seconds"] / steps[-1])
            curve[event["t"]] = float(event["metric"])
        if event["event"] == "end":
            ended[trial] = max(curve, default=0.0)
    if not took_s:
        raise ConfigError("this search has no reports yet: let it run a few trials first")
    unit_s = _unit_s({pair: statistics.median(each) for pair, each in took_s.items()})
    trials = {
        trial: RecordedTrial(tuple(curve), tuple(curve.values()), unit_s[trial], ended.get(trial, math.inf))
        for trial, curve in curves.items()
        if curve
    }
    return SearchRecord(trials, statistics.median(steps))


def _unit_s(seen_s: Mapping[tuple[int, int], float]) -> dict[int, float]:
    """Return trial → seconds for a unit on the fastest device; the slowness of devices is fitted over all trials."""
    known = {pair: seconds for pair, seconds in seen_s.items() if seconds > 0}
    _, _, slow = fitted(known, sweeps=_SWEEPS, doubt=_DOUBT) if known else (0.0, {}, {})
    least = min(slow.values(), default=0.0)
    found: dict[int, list[float]] = {}
    for (trial, device), seconds in seen_s.items():
        found.setdefault(trial, []).append(seconds * math.exp(least - slow.get(device, least)))
    return {trial: statistics.median(each) for trial, each in found.items()}


def cheapest(forecasts: Sequence[SearchForecast]) -> SearchForecast:
    """Return the cheapest forecast; among nearly equal costs, the one that ends first."""
    least = min(one.capacity_s for one in forecasts)
    return min((one for one in forecasts if one.capacity_s <= (1 + AS_CHEAP) * least), key=lambda one: one.end_s)


def counts(devices: int) -> list[int]:
    """Return the numbers of devices worth a forecast: 1, 2, 3, 4, 6, 8, 12, …, all."""
    fewer = {n << k for n in (1, 3) for k in range(devices.bit_length()) if n << k < devices}
    return sorted({*fewer, devices})
