"""Through a parameter server, at one's own pace (ASP) or within a bound (SSP). Pure."""

from __future__ import annotations

from uneven.core.actions import Add, Exchange, Moment, Payload, StepPlan, Via, Wait
from uneven.core.views import SyncView
from uneven.sync._parts import Members, Remembered, number, whole
from uneven.sync.base import Evaluated, Facts, Pace, SyncPolicy


class ASP(SyncPolicy):
    """Asynchronous parallel: after each step, add one's update to the parameter server's and go on from there.

    x̃ += scale · Δ_i on arrival, Δ_i being the movement of the step. With scale 1/n, the default, n workers move the
    copy as far as one step of their mean does, so the learning rate of BSP fits. Scale 1 adds every movement in
    full, as the asynchronous mode of BytePS does. Momentum makes stale updates worse: lower it (recalled).

    Args:
        scale: of each movement, above 0 and at most 1; None is 1 / members.

    Raises:
        ConfigError: scale out of range.
    """

    evaluated = Evaluated.CENTRE

    def __init__(self, *, scale: float | None = None) -> None:
        self.scale = None if scale is None else number("asp", "scale", scale, "(0, 1]")
        self._push = Remembered(self._make_push)
        self._plan = Remembered(self._make_plan)

    def plan(self, view: SyncView) -> StepPlan:
        """One push after the step, answered with the copy; no wait."""
        return self._plan(view.members)

    @property
    def constant(self) -> bool:
        return True

    @property
    def facts(self) -> Facts:
        """Nobody waits; staleness has no bound."""
        return Facts(
            payloads=(Payload.DELTA,),
            pace=Pace.OWN,
            stops=False,
            moves="the update of each step to the parameter server, and its parameters back",
            waits="nobody",
            stale="the start of a step, by the others' pushes since: n − 1 at equal speeds, no bound",
            lost_when_one_dies="the step that it was about to push; the others go on",
        )

    def _make_plan(self, members: Members) -> StepPlan:
        return StepPlan(exchanges=(self._push(members),))

    def _make_push(self, members: Members) -> Exchange:
        scale = 1 / len(members) if self.scale is None else self.scale
        return Exchange(payload=Payload.DELTA, members=members, merge=Add(scale), moment=Moment.STEP, via=Via.SERVER)


class SSP(ASP):
    """Stale synchronous parallel: as ASP, but no worker leads the slowest by more than ``staleness`` finished steps.

    A worker that has finished c steps starts the next one when nobody is below c − staleness, and then sees every
    update of the first c − staleness steps. Clocks so differ by at most staleness + 1 (after Ho et al. 2013).
    Staleness 0 is BSP on plain SGD. A slowdown that lasts uses the lead up, and then sets the pace of all.

    Args:
        staleness: steps; the default of 5 is the bound in the recipe of LB-BSP's authors' repository.
        scale: as of :class:`ASP`.

    Raises:
        ConfigError: staleness or scale out of range.
    """

    def __init__(self, *, staleness: int = 5, scale: float | None = None) -> None:
        super().__init__(scale=scale)
        self.staleness = whole("ssp", "staleness", staleness, least=0)

    def plan(self, view: SyncView) -> StepPlan:
        """The push of ASP, and a wait where there is somebody to wait for."""
        due = view.clock - self.staleness
        if due <= 0:  # everybody has finished no steps at all
            return self._plan(view.members)
        return StepPlan(exchanges=(self._push(view.members),), waits=(Wait(view.members, due),))

    @property
    def facts(self) -> Facts:
        """Workers at the staleness bound block."""
        s = self.staleness
        return Facts(
            payloads=(Payload.DELTA,),
            pace=Pace.BOUNDED,
            stops=False,
            moves="the update of each step to the parameter server, and its parameters back",
            waits=f"a worker that is {s + 1} steps ahead, for the slowest; in the long run all keep its pace",
            stale=f"the start of a step, by at most the last {s} steps of each of the others",
            lost_when_one_dies="the step that it was about to push; its clock counts no more and the others go on",
        )
