"""Do not move for nothing. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from operator import mul, truediv

from uneven.balance.base import Balancer, WrappingBalancer, standing
from uneven.core.actions import Split
from uneven.core.views import BalanceView
from uneven.errors import ConfigError

DEFAULT_FRACTION = 0.005
"""Our choice: changes that cannot be told from nothing are spared; a larger one left up to as much lying in
simulated closed loops with 5 to 25 % noise."""

_CHANCE_SHARE = 0.05
"""Our choice: so much of the gain that chance alone would promise is asked for on top of the fraction. More made
unequal workers wait for their shares in the same loops; that equal ones do not drift is PresumeEqual's affair."""


class Hysteresis(WrappingBalancer):
    """Keeps the present shares unless another balancer's would shorten the predicted iteration enough.

    The predicted time of an iteration is max_i x_i / v̂_i; the gain is 1 − (time with the new shares) / (time
    with the present ones). Equal workers never measure equal speeds: without a threshold the split would
    follow the noise and always be a little wrong. Workers that really differ gain far more than the threshold
    and are followed at once, with the full answer of the inner balancer, so what is left lying is at most
    the threshold.

    Predictions that rest on few reports, or on noisy ones, promise a gain by chance alone (:func:`chance_gain`);
    a part of it is asked for as well.

    Args:
        inner: proposes the shares; a balancer or its name.
        fraction: gain from which a change is worth it, at least 0, below 1.

    Raises:
        ConfigError: fraction out of range.
    """

    def __init__(self, inner: str | Balancer, *, fraction: float = DEFAULT_FRACTION) -> None:
        good = isinstance(fraction, (int, float)) and not isinstance(fraction, bool) and 0.0 <= fraction < 1.0
        if not good:
            raise ConfigError(f"hysteresis = {fraction!r} must be at least 0 and below 1, for instance 0.02")
        super().__init__(inner)
        self.fraction = float(fraction)

    def split(self, view: BalanceView) -> Split:
        """The inner balancer's shares if they are worth a change, else the present ones."""
        proposed = self.inner.split(view)
        present = standing(view)
        if present != view.shares:
            return proposed  # the present ones fit this batch or these limits no longer
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
    """Predicted local time of the slowest worker, in seconds."""
    times_s: Iterator[float] = map(truediv, shares, view.predicted_per_s)
    return max(times_s)


def chance_gain(view: BalanceView) -> float:
    """Gain that a split in proportion would promise over the present one if all workers were equally loaded.

    The slowest-looking of n workers looks slower than it is: the largest of n errors of relative standard
    deviation σ is σ √(2 ln n) for large n, and below that for small n.
    """
    n = len(view.doubts)
    if n < 2:
        return 0.0
    return math.sqrt(math.fsum(map(mul, view.doubts, view.doubts)) / n * 2.0 * math.log(n))
