"""Equal shares."""

from __future__ import annotations

from uneven.policy.balance.balancer import Balancer
from uneven.policy.core.actions import Split
from uneven.policy.core.apportion import proportional
from uneven.policy.core.views import BalanceView


class Even(Balancer):
    """Equal shares for all workers within the limits, as DistributedDataParallel has."""

    adapts = False

    def split(self, view: BalanceView) -> Split:
        shares = proportional([1.0] * len(view.members), view.global_batch, view.limits)
        return Split(shares, "even: the same for everybody")
