"""The loss and accuracy of a virtual training over virtual time."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from uneven.cluster.virtual.task import LearningTask
from uneven.cluster.virtual.virtual_replicas import Losses
from uneven.errors import ConfigError
from uneven.policy.core.records import EventRecord, Record, ScalarRecord


@dataclass(frozen=True, slots=True)
class Goal:
    """The accuracy, above 0 and at most 1, at which a training ends."""

    accuracy: float

    def __post_init__(self) -> None:
        if not 0 < self.accuracy <= 1:
            raise ConfigError(
                f"accuracy = {self.accuracy}: give a fraction of the held-out samples, above 0 and at most 1"
            )


class Point(NamedTuple):
    """One evaluation."""

    at_s: float  # virtual time
    samples: int  # that all workers together had taken steps on
    loss: float  # mean over the samples since the last evaluation; NaN without any
    accuracy: float  # on held-out samples


@dataclass(slots=True)
class Board:
    """Evaluates the model at intervals and records the result."""

    task: LearningTask
    sink: Callable[[Record], None]
    every: int  # samples of all workers between two evaluations
    goal: Goal | None = None
    losses: Losses = field(default_factory=Losses)
    points: list[Point] = field(default_factory=list)  # in the order of virtual time
    reached: Point | None = None  # the first point that meets the goal
    diverged: bool = False  # whether a parameter is NaN or infinite
    samples: int = 0
    _next: int = 0

    def due(self, batch: int) -> bool:
        """Count a step on ``batch`` samples; return whether to evaluate now."""
        self.samples += batch
        if self.samples < max(self._next, self.every):
            return False
        self._next = (self.samples // self.every + 1) * self.every
        return True

    def look(self, parameters: Tensor, rank: int, iteration: int, at_s: float) -> bool:
        """Evaluate a model, ``parameters`` (size,); return whether training can end.

        ``rank`` and ``iteration``: the journal to write to, and the step before.
        """
        loss = self.losses.take()
        self.diverged = not bool(parameters.isfinite().all())
        point = Point(at_s, self.samples, float("nan") if loss is None else loss, self.task.accuracy(parameters))
        self.points.append(point)
        for name, value in (("loss", loss), ("accuracy", point.accuracy)):
            if value is not None:
                self.sink(ScalarRecord(rank=rank, iteration=iteration, at_s=at_s, name=name, value=value))
        if self.diverged:
            text = "the parameters are not finite: lower the learning rate of the task"
            self.sink(EventRecord(rank=rank, iteration=iteration, at_s=at_s, event="non-finite", message=text))
        elif self.reached is None and self.goal is not None and point.accuracy >= self.goal.accuracy:
            self.reached = point
        return self.diverged or self.reached is not None
