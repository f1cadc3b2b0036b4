"""Bulk synchronous parallel: everybody agrees on every step. Pure."""

from __future__ import annotations

from functools import lru_cache

from uneven.core.actions import Exchange, Mean, Moment, Payload, StepPlan
from uneven.core.views import SyncView
from uneven.sync.base import SyncPolicy


class BSP(SyncPolicy):
    """Mean of the gradients over all members, weighted by samples, before every step.

    Moves: the gradient, once per step. Waits: everybody for the slowest. Stale: nothing. Lost when a worker
    dies: nothing but the run, which stops with a message. Evaluated: any replica, they are equal bit for bit.
    """

    def plan(self, view: SyncView) -> StepPlan:
        """One exchange that overlaps the backward pass."""
        return _plan(view.members)


@lru_cache(maxsize=8)  # asked on every step, and the answer changes only when somebody leaves or joins
def _plan(members: tuple[int, ...]) -> StepPlan:
    mean = Exchange(payload=Payload.GRADIENT, members=members, merge=Mean(), moment=Moment.BACKWARD)
    return StepPlan(exchanges=(mean,))
