"""Equal shares. Pure."""

from __future__ import annotations

from uneven.balance.base import Balancer
from uneven.core.actions import Split
from uneven.core.apportion import proportional
from uneven.core.views import BalanceView


class Even(Balancer):
    """Equal shares for all workers within the limits, as DistributedDataParallel has."""

    adapts = False

    def split(self, view: BalanceView) -> Split:
        shares = proportional([1.0] * len(view.members), view.global_batch, view.limits)
        return Split(shares, "even: the same for everybody")
