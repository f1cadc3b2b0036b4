"""Backup workers: the last gradients of a step are not waited for. Pure."""

from __future__ import annotations

from uneven.core.actions import Exchange, Mean, Moment, Payload, StepPlan, Via
from uneven.core.views import SyncView
from uneven.sync._parts import Members, Remembered, whole
from uneven.sync.base import Facts, Pace, SyncPolicy


class Backup(SyncPolicy):
    """The first n − spares gradients of a step make the update; later ones are dropped (after Chen et al. 2016).

    Who comes too late jumps to the newest step. No spares is BSP. The samples of slow workers are lost again and
    again, so all must draw from one shuffled order, as the loader of uneven lets them.

    Args:
        spares: workers that are not waited for; at least one always is.

    Raises:
        ConfigError: spares out of range.
    """

    def __init__(self, *, spares: int = 1) -> None:
        self.spares = whole("backup", "spares", spares, least=0)
        self._plan = Remembered(self._make_plan)

    def plan(self, view: SyncView) -> StepPlan:
        """One exchange with the parameter server that is complete without the spares."""
        return self._plan(view.members)

    @property
    def facts(self) -> Facts:
        """The fast ones wait for each other only."""
        return Facts(
            payloads=(Payload.GRADIENT,),
            pace=Pace.QUORUM,
            stops=False,
            moves="the gradient, or the step it makes, to the parameter server, and the mean of the first ones back",
            waits=f"all workers for the fastest n − {self.spares}, every step",
            stale="nothing: a gradient of an older step is dropped",
            lost_when_one_dies="its gradient of the step; the others go on",
        )

    def _make_plan(self, members: Members) -> StepPlan:
        mean = Exchange(
            payload=Payload.GRADIENT,
            members=members,
            merge=Mean(),
            moment=Moment.BACKWARD,
            via=Via.SERVER,
            quorum=max(1, len(members) - self.spares),
        )
        return StepPlan(exchanges=(mean,))
