"""The median stopping rule, as Ray has it. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import fmean, median

from uneven.errors import ConfigError
from uneven.search.rulings import GO_ON, Move, Progress, Ruling
from uneven.search.schedulers.base import Scheduler


class MedianStopping(Scheduler):
    """A trial is stopped when its best score is below the median of the others' mean scores up to the same point.

    Others are all trials, ended or not, that have come as far; the mean is over their results from the grace period on.

    Args:
        grace_period: no trial is stopped before.
        min_samples_required: how many others are needed; with fewer a trial makes room for those that wait.
        min_time_slice: it makes room only after so much training since it did so last.
        hard_stop: False pauses instead, and lets the trial be when it comes again.

    Raises:
        ConfigError: numbers that make no sense.
    """

    def __init__(
        self,
        grace_period: float = 1,
        min_samples_required: int = 3,
        min_time_slice: float = 0,
        hard_stop: bool = True,
    ) -> None:
        if not grace_period >= 0 or not min_time_slice >= 0:
            raise ConfigError(f"grace_period={grace_period}, min_time_slice={min_time_slice}: give zero or more")
        if min_samples_required < 1:
            raise ConfigError(f"min_samples_required={min_samples_required}: a median needs at least 1")
        self._grace = grace_period
        self._least = min_samples_required
        self._slice = min_time_slice
        self._hard = hard_stop
        self._results: dict[int, list[tuple[float, float]]] = {}
        self._last_pause: dict[int, float] = {}
        self._judged: set[int] = set()

    def on_result(self, progress: Progress) -> Ruling:
        trial, t = progress.trial, progress.t
        if trial in self._judged:
            return GO_ON
        self._results.setdefault(trial, []).append((t, progress.score))
        if t < self._grace:
            return GO_ON
        others = [rows for other, rows in self._results.items() if other != trial and rows[-1][0] >= t]
        means = [mean for mean in (self._mean(rows, t) for rows in others) if math.isfinite(mean)]
        if len(means) < self._least:
            since = t - self._last_pause.get(trial, -math.inf)
            if not progress.waiting or since <= self._slice:
                return GO_ON
            self._last_pause[trial] = t
            return Ruling(Move.PAUSE, "makes room, since too few are known to compare with")
        middle = median(means)
        best = max((score for _, score in self._results[trial] if not math.isnan(score)), default=-math.inf)
        if best >= middle:
            return GO_ON
        self._judged.add(trial)
        move = Move.STOP if self._hard else Move.PAUSE
        return Ruling(move, f"its best is behind the median of the others at {t:g}")

    def gone(self, trial: int) -> Mapping[int, Ruling]:
        return {}

    def _mean(self, rows: list[tuple[float, float]], upto: float) -> float:
        scores = [score for t, score in rows if self._grace <= t <= upto]
        return fmean(scores) if scores else math.nan
