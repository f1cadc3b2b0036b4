"""λ that follows how well the quadratic model foretells the steps, without knowing the loss. Pure.

Levenberg and Marquardt compare the loss with the model's; a part sees no loss. But along a step δ the model says how
the slope changes, too: ⟨∇, δ⟩ is −m before it and, after it, still −m where curvature has hardly been felt, 0 at the
bottom of the model, and positive where the step went beyond it. The rule is ours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

_MOST = 100.0
"""Greatest growth at a refresh."""

_RANGE = 1e5
"""How far λ may go from where it began, either way."""


@dataclass(slots=True)
class AdaptiveDamping:
    """λ grows with the overshoot where steps go further beyond the bottom than they came down, and shrinks where the
    slope keeps its sign.

    Args:
        start: λ at first, above 0.
        shrink: factor where the slope after a step points the same way as before it.

    Attributes:
        now: λ.
    """

    start: float
    shrink: float = 0.8
    now: float = 0.0
    _before: float = 0.0
    _after: float = 0.0

    def __post_init__(self) -> None:
        self.now = self.start

    def seen(self, before: float, after: float) -> None:
        """One step's slopes, ⟨∇, δ⟩ before and after it."""
        self._before += before
        self._after += after

    def proposed(self) -> float:
        """λ by what was seen since the last refresh: times after ÷ before where that is below −1, up to a hundred;
        times a hundred for what is no number, and as it is where nothing was seen or steps go uphill already."""
        before, after, self._before, self._after = self._before, self._after, 0.0, 0.0
        if not (math.isfinite(before) and math.isfinite(after)):
            factor = _MOST
        elif before >= 0.0:
            factor = 1.0
        else:
            ratio = after / before
            factor = self.shrink if ratio > 0.0 else min(max(1.0, -ratio), _MOST)
        return min(max(self.now * factor, self.start / _RANGE), self.start * _RANGE)
