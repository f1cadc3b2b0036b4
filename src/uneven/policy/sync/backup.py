"""Backup workers: each step uses the first gradients and drops late ones."""

from uneven.policy.core.actions import Exchange, Mean, Moment, Payload, Quorum, StepPlan, Via
from uneven.policy.core.views import SyncView
from uneven.policy.sync._parts import Members, Remembered, whole
from uneven.policy.sync.sync_policy import Facts, Pace, SyncPolicy


class Backup(SyncPolicy):
    """Synchronous steps on the first n − spares gradients; later ones are dropped (after Chen et al. 2016).

    A late worker jumps to the newest step. Without spares it is BSP. The samples of slow workers are lost repeatedly,
    so all workers must draw from one shuffled order, as uneven's loader does.

    Args:
        spares: number of workers that a step does not wait for; it always waits for at least one worker.
    """

    def __init__(self, *, spares: int = 1) -> None:
        self.spares = whole("backup", "spares", spares, least=0)
        self._plan = Remembered(self._make_plan)

    def plan(self, view: SyncView) -> StepPlan:
        return self._plan(view.members)

    @property
    def facts(self) -> Facts:
        return Facts(
            payloads=(Payload.GRADIENT,),
            pace=Pace.QUORUM,
            stops=False,
            moves="the gradient, or the resulting step, to the parameter server, and the mean of the first ones back",
            waits=f"all workers for the fastest n − {self.spares}, every step",
            stale="nothing: a gradient of an older step is dropped",
            lost_when_one_dies="its gradient of the step; the others continue",
        )

    def _make_plan(self, members: Members) -> StepPlan:
        mean = Exchange(
            payload=Payload.GRADIENT,
            members=members,
            merge=Mean(),
            moment=Moment.BACKWARD,
            via=Via.SERVER,
            # Workers may leave until fewer than ``spares`` + 1 are left; a step still needs one gradient.
            quorum=Quorum(count=max(1, len(members) - self.spares)),
        )
        return StepPlan(exchanges=(mean,))
