"""The standard error of predictions, without the noise of the iterations themselves."""

from __future__ import annotations

import math
from collections import deque
from typing import Annotated, Any, TypedDict

from uneven.policy.core.plain import Along, Amount, Positive, Range, read

_AHEAD = 8  # iterations whose mean a prediction is compared with
_WEIGHT = 0.005  # of the newest comparison; the difference of two means needs many of them
_CLIP = 3.0  # times the usual error; a lone spike counts as this much and no more
_LEAST = 0.005  # relative; clocks are not more exact


class DoubtState(TypedDict):
    """The checkpoint of a :class:`Doubt`."""

    told: list[Positive]
    came: Annotated[list[Positive], Along("told")]
    sums: tuple[Amount, Amount, Annotated[float, Range(0.0, 1.0)]]


class Doubt:
    """The standard error of any predictor, estimated from its own predictions (ours); differences are relative.

    Let a prediction p of a speed s have noise of variance σ². On average it misses the next iteration by (p − s)² + σ²,
    and the mean of the next m by (p − s)² + σ²/m. Both are measured, so (p − s)² is known: (m · second − first) / (m −
    1).
    """

    def __init__(self) -> None:
        self._told: deque[float] = deque(maxlen=_AHEAD)  # predictions, oldest first …
        self._came: deque[float] = deque(maxlen=_AHEAD)  # … and what came
        self._first = 0.0
        self._second = 0.0
        self._weight = 0.0

    def compare(self, told: float, came: float) -> None:
        """Compare a prediction (NaN is ignored) with the speed measured."""
        if math.isnan(told):
            return
        if self._weight:  # clip, so that one spike does not dominate the means
            reach = _CLIP * max(math.sqrt(self._first / self._weight), _LEAST)
            came = min(max(came, told * (1.0 - reach)), told * (1.0 + reach))
        self._told.append(told)
        self._came.append(came)
        if len(self._told) < _AHEAD:
            return
        oldest = self._told[0]
        mean = math.fsum(self._came) / _AHEAD
        self._first += _WEIGHT * ((self._came[0] / oldest - 1.0) ** 2 - self._first)
        self._second += _WEIGHT * ((mean / oldest - 1.0) ** 2 - self._second)
        self._weight += _WEIGHT * (1.0 - self._weight)

    def value(self) -> float:
        """Return the relative standard error of a prediction; 0 if unknown."""
        if not self._weight:
            return 0.0
        first, second = self._first / self._weight, self._second / self._weight
        # Dividing by the weight corrects the bias of the first comparisons, as in Adam's moments.
        apart = min(first, (_AHEAD * second - first) / (_AHEAD - 1))
        return math.sqrt(max(apart, _LEAST**2))

    def state_dict(self) -> dict[str, Any]:
        return {
            "told": list(self._told),
            "came": list(self._came),
            "sums": [self._first, self._second, self._weight],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        saved = read(DoubtState, state)
        self._told = deque(saved["told"], maxlen=_AHEAD)
        self._came = deque(saved["came"], maxlen=_AHEAD)
        self._first, self._second, self._weight = saved["sums"]
