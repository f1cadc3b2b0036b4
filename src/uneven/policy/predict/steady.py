"""The mean since the last lasting change."""

import math
from typing import Any, TypedDict

from uneven.policy.core.plain import Amount, Count, Misfit, Positive, read
from uneven.policy.core.views import Observation
from uneven.policy.predict.predictor import Predictor, measured

_CLIP = 3.0  # standard deviations: limit of a lone spike
_SLACK = 0.5  # standard deviations that a report may be off without counting as a sign of change
_ALARM = 6.0  # sum of signs that is a change: three clipped reports in a row, 3 · (3 − 0.5) > 6, but not two
_MEMORY = 256  # iterations after which the mean forgets, so that a slow drift is followed
_SAME_BATCH = 0.1  # relative difference up to which two batch sizes count as the same
_KEPT = 1  # iterations: weight of the knowledge from another batch size
_PRIOR_SPREAD = 0.2  # relative standard deviation assumed at first, worth as much as _PRIOR_ITERATIONS iterations
_PRIOR_ITERATIONS = 4
_LEAST_SPREAD = 0.01  # relative; a machine without noise must not mistake its first hiccup for a change


class SteadyState(TypedDict):
    """The checkpoint of a :class:`Steady`."""

    mean_s: Positive | None
    count: Count
    batch: Positive | None
    variance: Amount
    slower: Amount
    faster: Amount
    run: list[Positive]


class Steady(Predictor):
    """Averages the seconds per sample since the worker's speed last changed lastingly (ours).

    Between two changes a speed is a constant with noise, and the best estimate is the mean of all of it. A moving
    average with α = 0.2 never uses more than nine reports. A two-sided CUSUM test (Page, 1954) over clipped residuals
    distinguishes a lasting change from a spike. One or two bad reports move the mean a little; the third in a row
    restarts it from these three.
    """

    def __init__(self) -> None:
        self._mean_s = math.nan  # seconds per sample
        self._count = 0
        self._variance = _PRIOR_SPREAD**2  # relative to the mean
        self._slower = 0.0
        self._faster = 0.0
        self._batch = math.inf  # size at which the reports of the mean were measured
        self._run: list[float] = []  # reports since one of the two sums was last zero

    def observe(self, seen: Observation) -> None:
        speed = measured(seen)
        if speed is None:
            return
        # Seconds per sample, not speeds: the slowest worker of an iteration is found by times, and mean(x / t) > x /
        # mean(t).
        per_sample_s = 1.0 / speed
        self._follow_batch(seen.samples / seen.iterations)
        if self._count == 0:
            self._mean_s, self._count = per_sample_s, seen.iterations
            return
        spread_s = self._mean_s * max(math.sqrt(self._variance / seen.iterations), _LEAST_SPREAD)
        sign = max(-_CLIP, min(_CLIP, (per_sample_s - self._mean_s) / spread_s))
        self._slower = max(0.0, self._slower + sign - _SLACK)
        self._faster = max(0.0, self._faster - sign - _SLACK)
        self._run = [*self._run, per_sample_s] if max(self._slower, self._faster) > 0.0 else []
        if max(self._slower, self._faster) > _ALARM:
            self._start_afresh(seen.iterations)
        else:
            self._refine(sign * spread_s, seen.iterations)

    def _follow_batch(self, batch: float) -> None:
        # Part of a worker's time does not depend on its batch (the optimizer, the exchange), so samples per second
        # measured at another size hardly count.
        if not (1.0 - _SAME_BATCH) * self._batch <= batch <= (1.0 + _SAME_BATCH) * self._batch:
            self._batch = batch
            self._count = min(self._count, _KEPT)
            self._slower = self._faster = 0.0
            self._run = []

    def _refine(self, residual_s: float, iterations: int) -> None:
        self._count = min(self._count + iterations, _MEMORY)
        # The variance is that of one iteration; a report of several is their mean. Each report is one sample of it.
        weight = min(1.0, 1.0 / (self._count / iterations + _PRIOR_ITERATIONS))
        self._variance += weight * (iterations * (residual_s / self._mean_s) ** 2 - self._variance)
        self._mean_s += residual_s * min(1.0, iterations / self._count)

    def _start_afresh(self, iterations: int) -> None:
        newest = self._run[-3:]  # older ones may be from before the change
        self._mean_s, self._count = math.fsum(newest) / len(newest), iterations * len(newest)
        self._slower = self._faster = 0.0
        self._run = []

    def predict(self, ahead: int = 1) -> float:
        return 1.0 / self._mean_s

    def doubt(self) -> float:
        """Return the standard deviation of an iteration over the square root of their number."""
        return math.sqrt(max(self._variance, _LEAST_SPREAD**2) / self._count) if self._count else 0.0

    def state_dict(self) -> dict[str, Any]:
        return {
            "mean_s": self._mean_s if self._count else None,
            "count": self._count,
            "batch": self._batch if self._count else None,
            "variance": self._variance,
            "slower": self._slower,
            "faster": self._faster,
            "run": list(self._run),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        saved = read(SteadyState, state)
        mean_s, batch = saved["mean_s"], saved["batch"]
        if saved["count"] and (mean_s is None or batch is None):
            raise Misfit(mean_s, f"the mean of {saved['count']} iterations, and their batch", "mean_s")
        self._mean_s, self._count = math.nan if mean_s is None else mean_s, saved["count"]
        self._batch = math.inf if batch is None else batch
        self._variance, self._slower, self._faster = saved["variance"], saved["slower"], saved["faster"]
        self._run = saved["run"]
