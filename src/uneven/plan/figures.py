"""What one simulated combination came to, in the numbers that reasons are made of. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from uneven.core.actions import Exchange, Moment
from uneven.plan.combine import Choice
from uneven.simulate import Arithmetic, Outcome, OwnOutcome, WorkerOutcome
from uneven.sync import Facts


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """All workers together.

    Attributes:
        samples_per_s: all samples that counted, over all of the time.
        limit_per_s: if every worker computed all the time that it was there, as fast as it did here, and communication
            were free.
        iteration_s: median.
        wait_share, communicate_share: parts of everybody's time, 0 … 1.
        own: what each worker did for a preconditioner, where there is one.
        steps_apart: that a worker takes from one exchange in the background to the next; 0 if there are none.
    """

    workers: tuple[WorkerOutcome, ...]
    samples_per_s: float
    limit_per_s: float
    iteration_s: float
    wait_share: float
    communicate_share: float
    steps_apart: float
    ended_at_s: float
    own: tuple[OwnOutcome, ...] = ()

    @property
    def slowest(self) -> WorkerOutcome:
        """By its speed while it computes."""
        return min(self.workers, key=lambda worker: (worker.speed_per_s, worker.rank))

    @property
    def fastest(self) -> WorkerOutcome:
        """Likewise."""
        return max(self.workers, key=lambda worker: (worker.speed_per_s, -worker.rank))

    @property
    def unequal(self) -> float:
        """How many times faster the fastest computes than the slowest."""
        return self.fastest.speed_per_s / self.slowest.speed_per_s if self.slowest.speed_per_s > 0 else math.inf

    @property
    def dropped_share(self) -> float:
        """Part of the steps that came too late."""
        return sum(one.dropped for one in self.workers) / max(1, sum(one.steps for one in self.workers))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOutcome:
    """What a training came to.

    Attributes:
        reached_s, reached_samples: when the goal was reached, and with how many samples; None if it was not.
        best: accuracy.
        diverged: it ended with parameters that are no finite numbers.
    """

    reached_s: float | None
    reached_samples: int | None
    best: float
    diverged: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CombinationResult:
    """One combination.

    Attributes:
        refused: why a real run cannot carry the policy today; None where it can.
    """

    choice: Choice
    facts: Facts | None
    figures: Figures
    refused: str | None = None
    lesson: TrainingOutcome | None = None


class Counter(Arithmetic):
    """Counts along with a simulation what its outcome does not tell."""

    def __init__(self) -> None:
        self._aside = 0

    def merges(self, exchange: Exchange, ranks: tuple[int, ...]) -> None:
        """Count who takes part in an exchange in the background."""
        if exchange.moment is Moment.BACKGROUND:
            self._aside += len(ranks)

    def figures(self, outcome: Outcome, *, waits: bool = True) -> Figures:
        """What was counted, and what the simulation itself has counted.

        Args:
            waits: whether workers wait for each other at all; where they do not, all of an exchange is communication.
        """
        workers = outcome.workers if waits else tuple(_without_waiting(one) for one in outcome.workers)
        time_s = math.fsum(one.step_s * one.steps for one in workers)
        talk_s = math.fsum(one.communicate_share * one.step_s * one.steps for one in workers)
        end_s = outcome.ended_at_s
        return Figures(
            workers=workers,
            samples_per_s=_ratio(sum(one.samples for one in workers), end_s),
            limit_per_s=_ratio(math.fsum(one.speed_per_s * one.present_s for one in workers), end_s),
            iteration_s=outcome.iteration_s,
            wait_share=outcome.wait_share if waits else 0.0,
            communicate_share=_ratio(talk_s, time_s),
            steps_apart=_ratio(sum(one.steps for one in workers), self._aside),
            ended_at_s=end_s,
            own=outcome.own,
        )


def _without_waiting(worker: WorkerOutcome) -> WorkerOutcome:
    return replace(worker, wait_share=0.0, communicate_share=worker.communicate_share + worker.wait_share)


def _ratio(above: float, below: float) -> float:
    return above / below if below > 0 else 0.0
