"""A family of policies and its merge, in one file, as another package brings them: replicas on a leash."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from uneven import (
    ConfigError,
    EvaluationModel,
    Exchange,
    Facts,
    Merge,
    Moment,
    Pace,
    Payload,
    StepPlan,
    SyncPolicy,
    SyncView,
)


@dataclass(frozen=True, slots=True)
class Leash(Merge):
    """x ← x̃ + G · min(1, limit / ‖G‖), where G is the mean movement since x̃, weighted by samples.

    Args:
        limit: the farthest that one exchange moves the point from which all continue.
    """

    limit: float = 0.1

    def begin(self, start: Tensor) -> dict[str, Any]:
        """The point from which all start."""
        return {"start": start}

    def combine(
        self, kept: dict[str, Any], given: Tensor, weight: float, *, in_place: bool = False
    ) -> tuple[dict[str, Any], Tensor]:
        """A step towards the mean replica ``given``, shape (n,)."""
        moved = given - kept["start"]
        start = kept["start"] + moved * (self.limit / moved.norm()).clamp(max=1.0)
        return {"start": start}, start


class Leashed(SyncPolicy):
    """Own steps, and every few of them a merge by :class:`Leash`."""

    evaluation_model = EvaluationModel.CENTRE

    def __init__(self, *, every: int = 4, limit: float = 0.1) -> None:
        if every < 1 or limit <= 0:
            raise ConfigError(f"leashed: every = {every!r} must be at least 1, and limit = {limit!r} above 0")
        self.every = every
        self.limit = limit

    def plan(self, view: SyncView) -> StepPlan:
        """Merge the replicas of all at the end of a block of steps."""
        if (view.clock + 1) % self.every:
            return StepPlan()
        merge = Leash(self.limit)
        exchange = Exchange(payload=Payload.PARAMETERS, members=view.members, merge=merge, moment=Moment.STEP)
        return StepPlan(exchanges=(exchange,))

    @property
    def facts(self) -> Facts:
        """What it moves, and when."""
        return Facts(
            payloads=(Payload.PARAMETERS,),
            every=self.every,
            pace=Pace.TOGETHER,
            stops=True,
            moves=f"the parameters, every {self.every} steps",
            waits="all workers for the slowest, at each exchange",
            stale="the other workers' steps since the last exchange",
            lost_when_one_dies="its steps since the last exchange",
        )
