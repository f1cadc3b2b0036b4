"""A wrapper that moves samples only for a sufficient gain."""

from __future__ import annotations

import math
from collections.abc import Iterator
from operator import mul, truediv

from uneven.errors import ConfigError
from uneven.policy.balance.balancer import Balancer, WrappingBalancer, standing
from uneven.policy.core.actions import Split
from uneven.policy.core.views import BalanceView

# [default] Indistinguishable changes are skipped; a larger value lost as much as it allows, in simulated closed loops
# with 5 to 25 % noise.
DEFAULT_FRACTION = 0.005

# [default] Part of the gain that chance alone would promise, required on top of the fraction. A larger part delayed
# unequal workers in the same loops; PresumeEqual keeps equal workers from drifting.
_CHANCE_SHARE = 0.05


class Hysteresis(WrappingBalancer):
    """Keeps the current shares unless another balancer's shorten the predicted iteration enough.

    The predicted time of an iteration is max_i x_i / v̂_i; the gain is 1 − (time with the new shares) / (time with the
    current ones). Equal workers never measure equal speeds, so without a threshold the split would follow the noise.
    Workers that really differ gain far more than the threshold and get the inner balancer's full answer immediately.
    Predictions from few or noisy reports promise a gain by chance (:func:`chance_gain`); a part of it is added to the
    threshold.

    Args:
        inner: a balancer or its name.
        fraction: gain from which a change is made, at least 0, below 1.
    """

    def __init__(self, inner: str | Balancer, *, fraction: float = DEFAULT_FRACTION) -> None:
        good = isinstance(fraction, (int, float)) and not isinstance(fraction, bool) and 0.0 <= fraction < 1.0
        if not good:
            raise ConfigError(f"hysteresis = {fraction!r} must be at least 0 and below 1, for instance 0.02")
        super().__init__(inner)
        self.fraction = float(fraction)

    def split(self, view: BalanceView) -> Split:
        """Return the inner balancer's shares if the gain is sufficient, otherwise the current ones."""
        proposed = self.inner.split(view)
        present = standing(view)
        if present != view.shares:
            return proposed  # the current ones no longer fit this batch or these limits
        if not view.ready:
            return proposed
        if proposed.shares == present:
            return proposed
        needed = self.fraction + _CHANCE_SHARE * chance_gain(view)
        now_s, then_s = iteration_s(present, view), iteration_s(proposed.shares, view)
        gain = 1.0 - then_s / now_s
        if gain > needed:
            return Split(proposed.shares, f"{proposed.reason}; predicted iteration {now_s:.4g} s → {then_s:.4g} s")
        return Split(present, f"kept: a change would gain {gain:.1%}, less than {needed:.1%}")


def iteration_s(shares: tuple[int, ...], view: BalanceView) -> float:
    """Return the predicted local time of the slowest worker, in seconds."""
    times_s: Iterator[float] = map(truediv, shares, view.predicted_per_s)
    return max(times_s)


def chance_gain(view: BalanceView) -> float:
    """Return the gain that a proportional split would promise by chance if all workers were equally loaded."""
    n = len(view.doubts)
    if n < 2:
        return 0.0
    # The largest of n errors of relative standard deviation σ is σ √(2 ln n) for large n, and below that for small n.
    return math.sqrt(math.fsum(map(mul, view.doubts, view.doubts)) / n * 2.0 * math.log(n))
