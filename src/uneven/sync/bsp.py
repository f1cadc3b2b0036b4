"""Bulk synchronous parallel: everybody agrees on every step. Pure."""

from __future__ import annotations

from uneven.core.actions import Exchange, Mean, Moment, Payload, StepPlan
from uneven.core.views import SyncView
from uneven.sync._parts import Members, Remembered
from uneven.sync.base import Facts, Pace, SyncPolicy


def gradient_mean(members: Members) -> Exchange:
    """The mean of this step's gradients over all members, weighted by samples, under the backward pass."""
    return Exchange(payload=Payload.GRADIENT, members=members, merge=Mean(), moment=Moment.BACKWARD)


def bsp_plan(members: Members) -> StepPlan:
    """A step of BSP."""
    return StepPlan(exchanges=(gradient_mean(members),))


class BSP(SyncPolicy):
    """Mean of the gradients over all members, weighted by samples, before every step: x −= η Σ_i (x_i / X) ḡ_i.

    Evaluated: any replica, they are equal bit for bit.
    """

    def __init__(self) -> None:
        self._plan = Remembered(bsp_plan)

    def plan(self, view: SyncView) -> StepPlan:
        """One exchange that overlaps the backward pass."""
        return self._plan(view.members)

    @property
    def constant(self) -> bool:
        return True

    @property
    def facts(self) -> Facts:
        """Nothing is stale, and everybody waits."""
        return Facts(
            payloads=(Payload.GRADIENT,),
            pace=Pace.TOGETHER,
            stops=True,
            moves="the gradient, every step, during the backward pass",
            waits="all workers for the slowest, every step",
            stale="nothing",
            lost_when_one_dies="no update: the replicas are equal; the others stop at once",
        )
