"""Shares proportional to the predicted speeds."""

from __future__ import annotations

from uneven.policy.balance.balancer import Balancer, check_predictor, standing
from uneven.policy.core.actions import Split
from uneven.policy.core.apportion import proportional
from uneven.policy.core.views import BalanceView


class Proportional(Balancer):
    """LB-BSP's rule for CPU workers: x_i = X · v̂_i / Σ v̂_j, as integers within limits (specification, §1.5).

    It holds if a batch's time is proportional to its size. Rounding to the largest remainder lets any two workers that
    are not at a limit finish within one sample's time of the slower one.

    Args:
        predictor: specification of the predictor, for instance "last" or "ema:alpha=0.5".
    """

    partial_updates = True

    def __init__(self, *, predictor: str = "light") -> None:
        self.predictor = check_predictor(predictor)

    def split(self, view: BalanceView) -> Split:
        if not view.ready:
            return Split(standing(view), f"waiting for a first report from {_silent(view)}")
        shares = proportional(view.predicted_per_s, view.global_batch, view.limits)
        return Split(shares, f"in proportion to the speeds predicted by {self.predictor}")


def _silent(view: BalanceView) -> str:
    ranks = [rank for rank, v in zip(view.members, view.predicted_per_s, strict=True) if not (v == v and v > 0)]
    return f"rank {ranks[0]}" + (f" and {len(ranks) - 1} more" if len(ranks) > 1 else "")
