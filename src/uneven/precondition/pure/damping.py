"""Adaptive λ: it follows how well the quadratic model predicts the steps, without the loss.

Levenberg and Marquardt compare the loss with the model's, but a part does not see the loss. Along a step δ the model
also predicts the slope ⟨∇, δ⟩: −m before the step; after it, still −m if the curvature is hardly noticeable, 0 at the
minimum of the model, and positive beyond it. The rule is ours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

_MOST = 100.0  # maximum growth at a refresh
_RANGE = 1e5  # maximum factor between λ and its start, either way


@dataclass(slots=True)
class AdaptiveDamping:
    """λ that grows with the overshoot of steps, and shrinks while the slope keeps its sign."""

    start: float  # initial λ, above 0
    shrink: float = 0.8  # factor if the slope after a step has the same sign as before
    now: float = 0.0  # λ
    _before: float = 0.0
    _after: float = 0.0

    def __post_init__(self) -> None:
        self.now = self.start

    def seen(self, before: float, after: float) -> None:
        """Record one step's slopes, ⟨∇, δ⟩ before and after it."""
        self._before += before
        self._after += after

    def proposed(self) -> float:
        """Return λ by the steps since the last refresh, and forget them.

        With r = after ÷ before, λ grows by −r, 1 to 100, or shrinks if r > 0. It grows by 100 if a slope is not finite,
        and stays as it is without steps, or if steps go uphill.
        """
        before, after, self._before, self._after = self._before, self._after, 0.0, 0.0
        if not (math.isfinite(before) and math.isfinite(after)):
            factor = _MOST
        elif before >= 0.0:
            factor = 1.0
        else:
            ratio = after / before
            factor = self.shrink if ratio > 0.0 else min(max(1.0, -ratio), _MOST)
        return min(max(self.now * factor, self.start / _RANGE), self.start * _RANGE)
