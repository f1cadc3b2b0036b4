"""Learners that never wait: a copy takes in the movements of the first so many, and of who comes soon after. Pure."""

from __future__ import annotations

from uneven.core.actions import Exchange, Moment, Payload, StepPlan, Via
from uneven.core.views import SyncView
from uneven.merge.movement import OuterMovement
from uneven.sync._parts import NOTHING, Members, Remembered, number, whole
from uneven.sync.base import Evaluated, Facts, Pace, SyncPolicy
from uneven.sync.local import often


class Decoupled(SyncPolicy):
    """Local steps at one's own pace, an outer step on the movements of a quorum (the class of Decoupled DiLoCo, 2026).

    Every ``every`` steps a learner sends what it has moved and trains on. When ``quorum`` of them have come, the copy
    waits a grace window longer, takes one outer step with Nesterov momentum on their mean, weighted by samples, and
    answers them: x ← copy + what the learner has moved since it sent. Who comes after that counts in the next merge,
    and is answered by it. So nothing is lost, and nobody waits; a learner whose answer is still to come goes on, and
    sends more at the end of the block in which it has come.

    The window is ``grace`` times as long as the first of a quorum has waited for its last, and ends when all are there.
    No code of the method is public; the window, and what becomes of late ones, are ours.

    Args:
        every: steps between two contributions of a learner.
        quorum: learners; at least one, and no more than there are.
        grace: part of the time that the quorum took; 0 is none.
        outer_lr, outer_momentum: of the outer step, as of ``diloco``.

    Raises:
        ConfigError: an argument out of range.
    """

    evaluated = Evaluated.CENTRE

    def __init__(
        self, *, every: int = 16, quorum: int = 2, grace: float = 1.0, outer_lr: float = 0.7,
        outer_momentum: float = 0.9,
    ) -> None:  # fmt: skip
        self.every = whole("decoupled", "every", every, least=1)
        self.quorum = whole("decoupled", "quorum", quorum, least=1)
        self.grace = number("decoupled", "grace", grace, "[0, inf)")
        self.outer_lr = number("decoupled", "outer_lr", outer_lr, "(0, inf)")
        self.outer_momentum = number("decoupled", "outer_momentum", outer_momentum, "[0, 1)")
        self._merge = OuterMovement(self.outer_momentum, self.outer_lr)
        self._plan = Remembered(self._make_plan)

    def plan(self, view: SyncView) -> StepPlan:
        """One contribution after the last step of a block; no wait."""
        return NOTHING if (view.clock + 1) % self.every else self._plan(view.members)

    @property
    def facts(self) -> Facts:
        """Nobody waits."""
        return Facts(
            payloads=(Payload.DELTA,),
            every=self.every,
            pace=Pace.OWN,
            stops=False,
            moves=f"what a learner has moved, {often(self.every)}, to the copy of the parameters, and that back",
            waits="nobody; the copy for the first "
            f"{self.quorum} learners and {self.grace:g} times as long as these have taken",
            stale="a learner's replica, by the merges since its last answer",
            lost_when_one_dies="what it had moved and not sent; the others go on",
        )

    def _make_plan(self, members: Members) -> StepPlan:
        one = Exchange(
            payload=Payload.DELTA, members=members, merge=self._merge, moment=Moment.BACKGROUND, via=Via.SERVER,
            quorum=min(self.quorum, len(members)), grace=self.grace,
        )  # fmt: skip
        return StepPlan(exchanges=(one,))
