"""Do not move for nothing. Pure."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from uneven.balance.base import Balancer, standing
from uneven.core.actions import Split
from uneven.core.exact import column
from uneven.core.views import BalanceView
from uneven.errors import ConfigError

DEFAULT_FRACTION = 0.02
"""Our choice: with the predictor "steady" a smaller one gained nothing in simulated closed loops with 3 to 20 %
noise, and a larger one left up to as much lying."""

_DOUBT = 3.0  # the first prediction rests on one report: three times the gain is asked for, by 9 reports once


class Hysteresis(Balancer):
    """Keeps the present shares unless another balancer's would shorten the predicted iteration enough.

    The predicted time of an iteration is max_i x_i / v̂_i; the gain is 1 − (time with the new shares) / (time
    with the present ones). Equal workers never measure equal speeds: without a threshold the split would
    follow the noise and always be a little wrong. Workers that really differ gain far more than the threshold
    and are followed at once, with the full answer of the inner balancer, so what is left lying is at most
    the threshold.

    After k decisions the threshold is ``fraction`` · max(1, 3/√k), for the mean of k noisy reports is
    uncertain in proportion to 1/√k.

    Args:
        inner: proposes the shares.
        fraction: gain from which a change is worth it, at least 0, below 1.

    Raises:
        ConfigError: fraction out of range.
    """

    def __init__(self, inner: Balancer, *, fraction: float = DEFAULT_FRACTION) -> None:
        good = isinstance(fraction, (int, float)) and not isinstance(fraction, bool) and 0.0 <= fraction < 1.0
        if not good:
            raise ConfigError(f"hysteresis = {fraction!r} must be at least 0 and below 1, for instance 0.02")
        self.inner = inner
        self.fraction = float(fraction)
        self.predictor = inner.predictor
        self._decisions = 0

    @property
    def adapts(self) -> bool:  # type: ignore[override]
        """Whether the inner balancer does."""
        return self.inner.adapts

    def split(self, view: BalanceView) -> Split:
        """The inner balancer's shares if they are worth a change, else the present ones."""
        proposed = self.inner.split(view)
        present = standing(view)
        if present != view.shares:
            return proposed  # the present ones fit this batch or these limits no longer
        if not view.ready:
            return proposed
        self._decisions += 1
        if proposed.shares == present:
            return proposed
        needed = self.fraction * max(1.0, _DOUBT / math.sqrt(self._decisions))
        now_s, then_s = iteration_s(present, view), iteration_s(proposed.shares, view)
        gain = 1.0 - then_s / now_s
        if gain > needed:
            return Split(proposed.shares, f"{proposed.reason}; predicted iteration {now_s:.4g} s → {then_s:.4g} s")
        return Split(present, f"kept: a change would gain {gain:.1%}, less than {needed:.1%}")

    def state_dict(self) -> dict[str, Any]:
        """The count of decisions, and the inner balancer's state."""
        return {"decisions": self._decisions, "inner": self.inner.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of :meth:`state_dict`."""
        self._decisions = int(state["decisions"])
        self.inner.load_state_dict(state["inner"])


def iteration_s(shares: tuple[int, ...], view: BalanceView) -> float:
    """Predicted local time of the slowest worker, in seconds."""
    with np.errstate(over="ignore"):  # at next to no speed it takes for ever
        return float((column(shares) / column(view.predicted_per_s)).max())
