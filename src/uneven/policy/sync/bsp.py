"""Bulk synchronous parallel: all workers agree on every step."""

from uneven.policy.core.actions import Exchange, Mean, Moment, Payload, StepPlan
from uneven.policy.core.views import SyncView
from uneven.policy.sync._parts import Members, Remembered
from uneven.policy.sync.sync_policy import Facts, Pace, SyncPolicy


def gradient_mean(members: Members) -> Exchange:
    """Return the exchange that averages a step's gradients, weighted by samples, during the backward pass."""
    return Exchange(payload=Payload.GRADIENT, members=members, merge=Mean(), moment=Moment.BACKWARD)


def bsp_plan(members: Members) -> StepPlan:
    return StepPlan(exchanges=(gradient_mean(members),))


class BSP(SyncPolicy):
    """Mean of the gradients over all members, weighted by samples, before every step: x −= η Σ_i (x_i / X) ḡ_i.

    Any replica can be evaluated; they are bit-identical.
    """

    def __init__(self) -> None:
        self._plan = Remembered(bsp_plan)

    def plan(self, view: SyncView) -> StepPlan:
        return self._plan(view.members)

    @property
    def constant(self) -> bool:
        return True

    @property
    def facts(self) -> Facts:
        return Facts(
            payloads=(Payload.GRADIENT,),
            pace=Pace.TOGETHER,
            stops=True,
            moves="the gradient, every step, during the backward pass",
            waits="all workers for the slowest, every step",
            stale="nothing",
            lost_when_one_dies="no update: the replicas are equal; the others stop immediately",
        )
