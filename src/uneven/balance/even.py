"""Equal shares. Pure."""

from __future__ import annotations

from uneven.balance.base import Balancer
from uneven.core.actions import Split
from uneven.core.apportion import proportional
from uneven.core.views import BalanceView


class Even(Balancer):
    """The same for all workers, as far as the limits allow: what DistributedDataParallel does."""

    adapts = False

    def split(self, view: BalanceView) -> Split:
        """X / n each; the first ranks take the samples left over."""
        shares = proportional([1.0] * len(view.members), view.global_batch, view.limits)
        return Split(shares, "even: the same for everybody")
