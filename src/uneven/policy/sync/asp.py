"""Policies that train through a parameter server: asynchronous (ASP) or with bounded staleness (SSP)."""

from uneven.policy.core.actions import Add, Exchange, Moment, Payload, StepPlan, Via, Wait
from uneven.policy.core.views import SyncView
from uneven.policy.sync._parts import Members, Remembered, number, whole
from uneven.policy.sync.sync_policy import EvaluationModel, Facts, Pace, SyncPolicy


class ASP(SyncPolicy):
    """Asynchronous parallel: each worker adds its update to the parameter server after each step and never waits.

    The server computes x̃ += scale · Δ_i, where Δ_i is the movement of one step. With scale 1/n, the default, n workers
    move the copy as far as one step of their mean does, so the learning rate of BSP fits. Scale 1 adds every movement
    in full, as the asynchronous mode of BytePS does. Momentum makes stale updates worse: lower it [recalled].

    Args:
        scale: factor of each movement, above 0 and at most 1; None is 1 / members.
    """

    evaluation_model = EvaluationModel.CENTRE

    def __init__(self, *, scale: float | None = None) -> None:
        self.scale = None if scale is None else number("asp", "scale", scale, "(0, 1]")
        self._push = Remembered(self._make_push)
        self._plan = Remembered(self._make_plan)

    def plan(self, view: SyncView) -> StepPlan:
        return self._plan(view.members)

    @property
    def constant(self) -> bool:
        return True

    @property
    def facts(self) -> Facts:
        return Facts(
            payloads=(Payload.DELTA,),
            pace=Pace.OWN,
            stops=False,
            moves="the update of each step to the parameter server, and its parameters back",
            waits="no worker",
            stale="a step starts without the others' later pushes: n − 1 at equal speeds, no bound",
            lost_when_one_dies="the step that it was about to push; the others continue",
        )

    def _make_plan(self, members: Members) -> StepPlan:
        return StepPlan(exchanges=(self._push(members),))

    def _make_push(self, members: Members) -> Exchange:
        # The default depends on the members, so it is computed per plan: a worker that leaves raises it for the others.
        scale = 1 / len(members) if self.scale is None else self.scale
        return Exchange(payload=Payload.DELTA, members=members, merge=Add(scale), moment=Moment.STEP, via=Via.SERVER)


class SSP(ASP):
    """ASP in which no worker leads the slowest by more than ``staleness`` finished steps (stale synchronous parallel).

    A worker with c finished steps starts the next one when all workers have finished c − staleness. It then sees every
    update of the first c − staleness steps, so clocks differ by at most staleness + 1 (after Ho et al. 2013). Staleness
    0 is BSP on plain SGD. A lasting slowdown uses up the lead and then sets the pace of all workers.

    Args:
        staleness: steps; the default of 5 is the bound in the recipe of LB-BSP's authors' repository.
        scale: see :class:`ASP`.
    """

    def __init__(self, *, staleness: int = 5, scale: float | None = None) -> None:
        super().__init__(scale=scale)
        self.staleness = whole("ssp", "staleness", staleness, least=0)

    def plan(self, view: SyncView) -> StepPlan:
        due = view.clock - self.staleness
        if due <= 0:  # every worker has finished at least 0 steps: no wait
            return self._plan(view.members)
        return StepPlan(exchanges=(self._push(view.members),), waits=(Wait(view.members, due),))

    @property
    def facts(self) -> Facts:
        s = self.staleness
        return Facts(
            payloads=(Payload.DELTA,),
            pace=Pace.BOUNDED,
            stops=False,
            moves="the update of each step to the parameter server, and its parameters back",
            waits=f"a worker that is {s + 1} steps ahead for the slowest; in the long run all keep its pace",
            stale=f"a step starts without at most the last {s} steps of each other worker",
            lost_when_one_dies="the step that it was about to push; its clock no longer counts, the others continue",
        )
