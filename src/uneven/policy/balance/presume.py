"""A wrapper that keeps equal shares until workers prove unequal."""

from __future__ import annotations

import math

from uneven.errors import ConfigError
from uneven.policy.balance.balancer import Balancer, WrappingBalancer
from uneven.policy.balance.even import Even
from uneven.policy.balance.hysteresis import chance_gain, iteration_s
from uneven.policy.core.actions import Split
from uneven.policy.core.views import BalanceView, Limits

# [default] Equal workers that share the cores of one machine seem up to this unequal.
DEFAULT_MARGIN = 0.05

# [default] Leaving equal shares takes this many times the gain that chance promises, staying away from them once.
_TO_LEAVE = 1.5


class PresumeEqual(WrappingBalancer):
    """Keeps equal shares until another balancer's are predicted to be faster by a margin (ours).

    A gain g makes an iteration 1 / (1 − g) times as fast. This factor must exceed e^c / (1 − margin), where c is the
    gain by chance (:func:`~uneven.policy.balance.hysteresis.chance_gain`). A large enough gain is sufficient for any c.

    Workers on one machine are coupled: the one with the most samples computes longest, at the end on cores that the
    others have left free, and so measures the highest speed. A balancer that follows such a difference widens it.
    Really unequal workers differ by far more than the margin, and then small corrections pass unchanged.

    Args:
        inner: a balancer or its name.
        margin: gain over equal shares below which these stay, at least 0, below 1.
    """

    def __init__(self, inner: str | Balancer, *, margin: float = DEFAULT_MARGIN) -> None:
        if isinstance(margin, bool) or not isinstance(margin, (int, float)) or not 0.0 <= margin < 1.0:
            raise ConfigError(f"margin = {margin!r} must be at least 0 and below 1, for instance 0.05")
        super().__init__(inner)
        self.margin = float(margin)
        self._even: tuple[int, Limits, tuple[int, ...]] | None = None  # the last answer, because n may be large

    def split(self, view: BalanceView) -> Split:
        """Return the inner balancer's shares if they beat equal ones by the margin, otherwise equal ones."""
        proposed = self.inner.split(view)
        if not view.ready:
            return proposed
        even = self._even_shares(view)
        even_s, proposed_s = iteration_s(even, view), iteration_s(proposed.shares, view)
        chance = chance_gain(view) * (_TO_LEAVE if view.shares == even else 1.0)
        needed = 1.0 - (1.0 - self.margin) * math.exp(-chance)
        if proposed.shares == even or 1.0 - proposed_s / even_s > needed:
            return proposed
        return Split(even, f"even: the predicted speeds differ too little to gain {needed:.1%}")

    def _even_shares(self, view: BalanceView) -> tuple[int, ...]:
        if self._even is None or self._even[0] != view.global_batch or self._even[1] is not view.limits:
            self._even = view.global_batch, view.limits, Even().split(view).shares
        return self._even[2]
