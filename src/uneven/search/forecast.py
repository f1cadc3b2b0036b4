"""How long a search takes on other devices: what was recorded of it, played again in virtual time. Pure.

Rates and curves are those of a search that was run; scheduler, searcher and placing are the same objects. Trial n
learns as trial n of the record did; trials beyond the record are like earlier ones, in turns. After its last recorded
report a trial stays as good as it was, which is a guess: a scheduler that lets it train on learns nothing new of it.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from uneven.errors import ConfigError
from uneven.search.core import SearchCore
from uneven.search.paces import fitted
from uneven.search.records import TrialRecord
from uneven.search.simulate import SimulatedSearch, simulate

_SWEEPS, _DOUBT = 100, 0.01
"""All is measured already, so trials that ran on several devices say nearly alone how slow these are."""

AS_CHEAP = 0.05
"""Searches that cost at most so much more than the cheapest one count as equally cheap."""


@dataclass(frozen=True, slots=True)
class RecordedTrial:
    """What a trial did.

    Attributes:
        t, metric: of its reports, in order.
        unit_s: seconds for a unit of training on the fastest device of the record.
        ended_t: how much it had been trained when its function returned; infinite if it was not let come so far.
    """

    t: tuple[float, ...]
    metric: tuple[float, ...]
    unit_s: float
    ended_t: float = math.inf

    def metric_at(self, t: float) -> float:
        """What it reports after so much training."""
        return self.metric[max(0, bisect_right(self.t, t) - 1)]


@dataclass(frozen=True, slots=True)
class SearchForecast:
    """A search on so many devices."""

    devices: int
    end_s: float
    capacity_s: float  # that, times the speeds of the devices together: what they cost, used or not
    used: float  # part of the devices' time in which they train, 0 … 1
    units: float  # training of all trials together
    best: float  # score, the higher the better


@dataclass(frozen=True, slots=True)
class SearchRecord:
    """A search that was run.

    Attributes:
        trials: those that have reported.
        step: training between two reports, the median.
    """

    trials: Mapping[int, RecordedTrial]
    step: float

    def like(self, trial: TrialRecord) -> RecordedTrial:
        """What this trial does."""
        found = self.trials.get(trial.number)
        return found or self.trials[sorted(self.trials)[trial.number % len(self.trials)]]

    def forecast(self, core: SearchCore, speeds: Sequence[float]) -> SearchForecast:
        """What the same search comes to on other devices; see :meth:`play`."""
        played = self.play(core, speeds)
        best = max((score for *_, score in played.bests), default=math.nan)
        used = played.busy_s / (played.end_s * len(speeds)) if played.end_s else 0.0
        return SearchForecast(len(speeds), played.end_s, played.end_s * sum(speeds), used, played.units, best)

    def play(self, core: SearchCore, speeds: Sequence[float]) -> SimulatedSearch:
        """The same search on other devices.

        Args:
            core: that has heard of nothing.
            speeds: of the devices; the fastest of the record has 1.

        Raises:
            ConfigError: nothing says when a trial ends, or a device stands still.
        """
        known = [one.ended_t for one in self.trials.values() if one.ended_t < math.inf]
        usual = statistics.median(known) if known else core.left(0, 0.0)
        if math.isinf(usual):
            raise ConfigError("nothing says when a trial ends: no trial of the record has, and there is no max_t")
        return simulate(
            core, lambda trial, t: self.like(trial).metric_at(t), speeds=speeds, step=self.step,
            costs=lambda trial: self.like(trial).unit_s,
            ends=lambda trial: self.like(trial).ended_t if self.like(trial).ended_t < math.inf else usual,
        )  # fmt: skip


def recorded(events: Sequence[Mapping[str, Any]]) -> SearchRecord:
    """What the events of a search say of its trials.

    Raises:
        ConfigError: nobody has reported.
    """
    curves: dict[int, dict[float, float]] = {}
    took_s: dict[tuple[int, int], list[float]] = {}
    ended: dict[int, float] = {}
    steps: list[float] = []
    for event in events:
        trial = event.get("trial", -1)
        curve = curves.setdefault(trial, {})
        if "metric" in event and event["t"] > max(curve, default=0.0):
            steps.append(event["t"] - max(curve, default=0.0))
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
        for trial, curve in curves.items() if curve
    }  # fmt: skip
    return SearchRecord(trials, statistics.median(steps))


def _unit_s(seen_s: Mapping[tuple[int, int], float]) -> dict[int, float]:
    """Trial → seconds for a unit on the fastest device; how slow devices are is fitted over all trials."""
    known = {pair: seconds for pair, seconds in seen_s.items() if seconds > 0}
    _, _, slow = fitted(known, sweeps=_SWEEPS, doubt=_DOUBT) if known else (0.0, {}, {})
    least = min(slow.values(), default=0.0)
    found: dict[int, list[float]] = {}
    for (trial, device), seconds in seen_s.items():
        found.setdefault(trial, []).append(seconds * math.exp(least - slow.get(device, least)))
    return {trial: statistics.median(each) for trial, each in found.items()}


def cheapest(forecasts: Sequence[SearchForecast]) -> SearchForecast:
    """The one that costs least; of those that cost nearly the same, the one that ends first."""
    least = min(one.capacity_s for one in forecasts)
    return min((one for one in forecasts if one.capacity_s <= (1 + AS_CHEAP) * least), key=lambda one: one.end_s)


def counts(devices: int) -> list[int]:
    """Numbers of devices that are worth a look: 1, 2, 3, 4, 6, 8, 12, …, all."""
    fewer = {n << k for n in (1, 3) for k in range(devices.bit_length()) if n << k < devices}
    return sorted({*fewer, devices})
