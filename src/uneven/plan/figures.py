"""What one simulated combination came to, in the numbers that reasons are made of. Pure."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from dataclasses import dataclass, field

from uneven.core.actions import Exchange, Moment
from uneven.core.records import Record, StepRecord
from uneven.plan.combine import Choice
from uneven.simulate import Arithmetic, Outcome
from uneven.sync import Facts


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """One worker's run.

    Attributes:
        steps, dropped: that it took, and how many of them came too late and count for nothing.
        samples: that counted.
        speed_per_s: samples per second of computing.
        present_s: from the start of its first step to the end of its last.
        batch: samples of its last step.
        step_s: mean time of a step.
        late_rate_per_s: steps per second in the second half of the run, or while it was there if that was less.
        wait_share, communicate_share: parts of the time of its steps, 0 … 1.
    """

    rank: int
    node: str
    steps: int
    dropped: int
    samples: int
    speed_per_s: float
    present_s: float
    batch: int
    step_s: float
    late_rate_per_s: float
    wait_share: float
    communicate_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """All workers together.

    Attributes:
        samples_per_s: all samples that counted, over all of the time.
        limit_per_s: if everybody computed all the time that it was there, as fast as it did here, and communication
            were free.
        iteration_s: median.
        wait_share, communicate_share: parts of everybody's time, 0 … 1.
        steps_apart: that a worker takes from one exchange in the background to the next; 0 if there are none.
    """

    workers: tuple[Worker, ...]
    samples_per_s: float
    limit_per_s: float
    iteration_s: float
    wait_share: float
    communicate_share: float
    steps_apart: float
    ended_at_s: float

    @property
    def slowest(self) -> Worker:
        """By its speed while it computes."""
        return min(self.workers, key=lambda worker: (worker.speed_per_s, worker.rank))

    @property
    def fastest(self) -> Worker:
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
class Lesson:
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
class Result:
    """One combination.

    Attributes:
        refused: why a real run cannot carry the policy today; None where it can.
    """

    choice: Choice
    facts: Facts | None
    figures: Figures
    refused: str | None = None
    lesson: Lesson | None = None


@dataclass(slots=True)
class _Sums:
    steps: int = 0
    dropped: int = 0
    samples: int = 0
    batch: int = 0
    compute_s: float = 0.0
    counted_s: float = 0.0  # computing for samples that counted
    exchange_s: float = 0.0
    began_s: float = 0.0
    ends_s: array[float] = field(default_factory=lambda: array("d"))


class Counter(Arithmetic):
    """Counts along with a simulation: the steps as a sink, what happens in the background as its arithmetic."""

    def __init__(self) -> None:
        self._workers: dict[int, _Sums] = {}
        self._aside = 0

    def merges(self, exchange: Exchange, ranks: tuple[int, ...]) -> None:
        """Count who takes part in an exchange in the background."""
        if exchange.moment is Moment.BACKGROUND:
            self._aside += len(ranks)

    def __call__(self, record: Record) -> None:
        """Take a record; only steps matter."""
        if not isinstance(record, StepRecord):
            return
        sums = self._workers.get(record.rank)
        if sums is None:
            sums = self._workers[record.rank] = _Sums()
            sums.began_s = record.ended_at_s - record.compute_s - record.exchange_s
        sums.steps += 1
        sums.compute_s += record.compute_s
        sums.exchange_s += record.exchange_s
        sums.ends_s.append(record.ended_at_s)
        if record.batch:
            sums.batch = record.batch
            sums.samples += record.batch
            sums.counted_s += record.compute_s
        else:
            sums.dropped += 1

    def figures(self, outcome: Outcome, *, waits: bool = True) -> Figures:
        """What was counted, and what the simulation itself has counted.

        Args:
            waits: whether workers wait for each other at all; where they do not, all of an exchange is communication.
        """
        end_s = max((sums.ends_s[-1] for sums in self._workers.values()), default=0.0)
        shares = {one.rank: one for one in outcome.workers}
        workers = tuple(
            Worker(
                rank=rank,
                node=shares[rank].node,
                steps=sums.steps,
                dropped=sums.dropped,
                samples=sums.samples,
                speed_per_s=_ratio(sums.samples, sums.counted_s),
                present_s=sums.ends_s[-1] - sums.began_s,
                batch=sums.batch,
                step_s=_ratio(sums.compute_s + sums.exchange_s, sums.steps),
                late_rate_per_s=_late_rate(sums, end_s),
                wait_share=shares[rank].wait_share if waits else 0.0,
                communicate_share=shares[rank].communicate_share + (0.0 if waits else shares[rank].wait_share),
            )
            for rank, sums in sorted(self._workers.items())
        )
        time_s = math.fsum(one.step_s * one.steps for one in workers)
        talk_s = math.fsum(one.communicate_share * one.step_s * one.steps for one in workers)
        return Figures(
            workers=workers,
            samples_per_s=_ratio(sum(one.samples for one in workers), end_s),
            limit_per_s=_ratio(math.fsum(one.speed_per_s * one.present_s for one in workers), end_s),
            iteration_s=outcome.iteration_s,
            wait_share=outcome.wait_share if waits else 0.0,
            communicate_share=_ratio(talk_s, time_s),
            steps_apart=_ratio(sum(one.steps for one in workers), self._aside),
            ended_at_s=end_s,
        )


def _late_rate(sums: _Sums, end_s: float) -> float:
    middle_s, last_s = end_s / 2, sums.ends_s[-1]
    if sums.began_s < middle_s and last_s > 0.9 * end_s:
        return _ratio(sums.steps - bisect_left(sums.ends_s, middle_s), last_s - middle_s)
    return _ratio(sums.steps, last_s - sums.began_s)


def _ratio(above: float, below: float) -> float:
    return above / below if below > 0 else 0.0
