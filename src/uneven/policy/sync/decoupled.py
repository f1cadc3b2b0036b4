"""Learners that never wait: the server's parameters take an outer step on the movements of a quorum."""

from uneven.policy.core.actions import Exchange, Moment, Payload, Quorum, StepPlan, Via
from uneven.policy.core.views import SyncView
from uneven.policy.merge.merge import OuterMovement
from uneven.policy.sync._parts import NOTHING, Members, Remembered, number, whole
from uneven.policy.sync.local import often
from uneven.policy.sync.sync_policy import EvaluationModel, Facts, Pace, SyncPolicy

_SHOWN = 100  # local steps in Asynchronous Local-SGD (Liu et al. 2024) [recalled]


class Decoupled(SyncPolicy):
    """Asynchronous local steps, with an outer step on the movements of a quorum (after Decoupled DiLoCo, 2026).

    Every ``every`` steps a learner sends its movement and trains on. When ``quorum`` of them have arrived, the copy
    waits for a grace window, or until all have sent. The window is ``grace`` times the time between the first and the
    last arrival of the quorum. The copy then takes one outer step with Nesterov momentum on their mean, weighted by
    samples. The answer is x ← copy + the learner's movement since it sent. A later arrival counts in the next merge. A
    learner without an answer continues, and sends more at the end of the block in which the answer arrived. The paper's
    code is not public; the window and the handling of late arrivals are ours.

    Args:
        every: steps between two contributions of a learner.
        quorum: learners, at least 1; at most all of them count.
        grace: length of the window relative to the time that the quorum took; 0 is none.
        outer_lr, outer_momentum: of the outer step, as in ``diloco``.
    """

    evaluation_model = EvaluationModel.CENTRE

    def __init__(
        self,
        *,
        every: int = 16,
        quorum: int = 2,
        grace: float = 1.0,
        outer_lr: float = 0.7,
        outer_momentum: float = 0.9,
    ) -> None:
        self.every = whole("decoupled", "every", every, least=1)
        self.quorum = whole("decoupled", "quorum", quorum, least=1)
        self.grace = number("decoupled", "grace", grace, "[0, inf)")
        self.outer_lr = number("decoupled", "outer_lr", outer_lr, "(0, inf)")
        self.outer_momentum = number("decoupled", "outer_momentum", outer_momentum, "[0, 1)")
        self._merge = OuterMovement(self.outer_momentum, self.outer_lr)
        self._plan = Remembered(self._make_plan)

    def plan(self, view: SyncView) -> StepPlan:
        return NOTHING if (view.clock + 1) % self.every else self._plan(view.members)

    @property
    def facts(self) -> Facts:
        return Facts(
            payloads=(Payload.DELTA,),
            every=self.every,
            pace=Pace.OWN,
            stops=False,
            moves=f"a learner's movement, {often(self.every)}, to the server, and its copy back",
            waits=f"no worker; the server for the first {self.quorum} learners and {self.grace:g} times their time",
            stale="a learner's replica lacks the merges since its last answer",
            lost_when_one_dies="its unsent movement; the others continue",
            shown=_SHOWN,
        )

    def _make_plan(self, members: Members) -> StepPlan:
        # Background and a server: the learner continues, and the answer enters whenever it arrives.
        one = Exchange(
            payload=Payload.DELTA,
            members=members,
            merge=self._merge,
            moment=Moment.BACKGROUND,
            via=Via.SERVER,
            quorum=Quorum(count=min(self.quorum, len(members)), grace=self.grace),
        )
        return StepPlan(exchanges=(one,))
