"""The median stopping rule, as in Ray."""

import math
from statistics import fmean, median

from uneven.errors import ConfigError
from uneven.search.pure.decisions import GO_ON, Move, Progress, Ruling
from uneven.search.pure.schedulers.scheduler import Scheduler


class MedianStopping(Scheduler):
    """The median rule: a trial stops if its best score is below the median of the other trials' mean scores so far.

    The other trials are all that have reached this point, ended or not. A mean covers results from the grace period on.

    Args:
        grace_period: training before which no trial is stopped.
        min_samples_required: number of other trials needed; with fewer, a trial pauses if others wait.
        min_time_slice: least training between two such pauses.
        hard_stop: False pauses instead, and does not judge the trial again.

    Raises:
        ConfigError: a number is invalid.
    """

    def __init__(
        self, grace_period: float = 1, min_samples_required: int = 3, min_time_slice: float = 0, hard_stop: bool = True
    ) -> None:
        if not grace_period >= 0 or not min_time_slice >= 0:
            raise ConfigError(f"grace_period={grace_period}, min_time_slice={min_time_slice}: give zero or more")
        if min_samples_required < 1:
            raise ConfigError(f"min_samples_required={min_samples_required}: give at least 1")
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

    def _mean(self, rows: list[tuple[float, float]], upto: float) -> float:
        scores = [score for t, score in rows if self._grace <= t <= upto]
        return fmean(scores) if scores else math.nan
