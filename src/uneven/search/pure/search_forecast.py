"""Forecast the time of a search on other devices by replaying its record in virtual time.

Rates and curves come from a finished or running search; scheduler, searcher and placing are the same objects. Trial n
learns as trial n of the record did; trials beyond the record repeat earlier ones in turn. After its last recorded
report a trial's metric is assumed constant, so a scheduler that trains it longer learns nothing new.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from uneven.errors import ConfigError
from uneven.search.pure.core import SearchCore
from uneven.search.pure.paces import fitted
from uneven.search.pure.simulated_search import SimulatedSearch, simulate
from uneven.search.pure.trial_records import TrialRecord

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
    """The record of a search."""

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
        # Trials that a scheduler stopped have no known end; the usual one stands in for it.
        usual = statistics.median(known) if known else core.left(0, 0.0)
        if math.isinf(usual):
            raise ConfigError("nothing says when a trial ends: no trial of the record has, and there is no max_t")
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
        raise ConfigError("this search has no reports yet: let it try a few trials first")
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
