"""Sums over a simulated run.

Waiting is counted as in a journal. In each iteration the least ``exchange_s`` of all workers is communication, and the
excess of each worker is its wait.
"""

import math
from array import array
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from uneven.cluster.pure.simulate.preconditioning import OwnOutcome
from uneven.cluster.pure.simulate.table_servers import TableOutcome
from uneven.policy.core.records import StepRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOutcome:
    """One worker's run."""

    rank: int
    node: str
    clock: int  # finished steps, including those that others took while it was late
    steps: int  # that it took itself …
    dropped: int  # … including late ones, which did not count
    samples: int  # of the steps that counted
    batch: int  # samples of the last step that counted
    speed_per_s: float  # samples that counted, per second of computing for them
    step_s: float  # mean
    late_rate_per_s: float  # steps per second in the second half of the run, or in its own time if shorter
    compute_share: float  # these three: parts of the time of its steps, 0 … 1
    wait_share: float
    communicate_share: float
    began_at_s: float  # start of its first step
    ended_at_s: float  # end of its last step

    @property
    def present_s(self) -> float:
        return self.ended_at_s - self.began_at_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a simulation."""

    iterations: int  # that any worker took
    iteration_s: float  # median time between the ends of iterations, without the first
    p90_s: float  # 90th percentile of these
    samples_per_s: float  # samples that counted over the time of each worker's steps, summed over the workers
    wait_share: float  # part of all workers' time spent waiting for others
    ended_at_s: float  # end of the last step
    happened: int  # events and steps, to measure the simulator's own speed
    workers: tuple[WorkerOutcome, ...]
    own: tuple[OwnOutcome, ...] = ()  # each worker's work for a preconditioner, if any
    tables: TableOutcome | None = None  # of the servers of embedding tables, if any


@dataclass(slots=True)
class _WorkerSums:
    began_s: float
    dropped: int = 0
    samples: int = 0
    batch: int = 0
    compute_s: float = 0.0
    counted_s: float = 0.0  # computing for samples that counted
    exchange_s: float = 0.0
    iterations: "array[int]" = field(default_factory=lambda: array("q"))
    ends_s: "array[float]" = field(default_factory=lambda: array("d"))

    @property
    def steps(self) -> int:
        return len(self.ends_s)

    @property
    def ended_s(self) -> float:
        return self.ends_s[-1]


class Tally:
    """Counts steps as they end."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names
        self._workers: dict[int, _WorkerSums] = {}
        self._ends_s: dict[int, float] = {}
        self._least_s: dict[int, float] = {}

    def add(self, step: StepRecord) -> None:
        """Count a finished step; steps arrive in the order of their ends."""
        sums = self._workers.get(step.rank)
        if sums is None:
            sums = self._workers[step.rank] = _WorkerSums(step.ended_at_s - step.compute_s - step.exchange_s)
        sums.compute_s += step.compute_s
        sums.exchange_s += step.exchange_s
        if step.batch:
            sums.batch = step.batch
            sums.samples += step.batch
            sums.counted_s += step.compute_s
        else:
            # A record without samples is a step that came too late.
            sums.dropped += 1
        self._ends_s[step.iteration] = step.ended_at_s
        sums.ends_s.append(step.ended_at_s)
        sums.iterations.append(step.iteration)
        if step.exchange_s < self._least_s.get(step.iteration, math.inf):
            self._least_s[step.iteration] = step.exchange_s

    @property
    def finished(self) -> int:
        return len(self._ends_s)

    def outcome(self, happened: int, clocks: Mapping[int, int]) -> Outcome:
        ends_s = np.array([end_s for _, end_s in sorted(self._ends_s.items())])
        durations_s = np.diff(ends_s) if len(ends_s) > 1 else ends_s
        end_s = max((sums.ended_s for sums in self._workers.values()), default=0.0)
        workers = tuple(self._worker(rank, sums, clocks[rank], end_s) for rank, sums in sorted(self._workers.items()))
        time_s = math.fsum(sums.compute_s + sums.exchange_s for sums in self._workers.values())
        wait_s = math.fsum(self._wait_s(sums) for sums in self._workers.values())
        rates = [ratio(worker.samples, worker.present_s) for worker in workers]
        return Outcome(
            iterations=len(ends_s),
            iteration_s=float(np.median(durations_s)) if len(ends_s) else math.nan,
            p90_s=float(np.quantile(durations_s, 0.9)) if len(ends_s) else math.nan,
            samples_per_s=math.fsum(rates),
            wait_share=ratio(wait_s, time_s),
            ended_at_s=end_s,
            happened=happened + sum(sums.steps for sums in self._workers.values()),
            workers=workers,
        )

    def _wait_s(self, sums: _WorkerSums) -> float:
        return max(0.0, sums.exchange_s - math.fsum(self._least_s[iteration] for iteration in sums.iterations))

    def _worker(self, rank: int, sums: _WorkerSums, clock: int, end_s: float) -> WorkerOutcome:
        time_s, wait_s = sums.compute_s + sums.exchange_s, self._wait_s(sums)
        return WorkerOutcome(
            rank=rank,
            node=self._names[rank],
            clock=clock,
            steps=sums.steps,
            dropped=sums.dropped,
            samples=sums.samples,
            batch=sums.batch,
            speed_per_s=ratio(sums.samples, sums.counted_s),
            step_s=ratio(time_s, sums.steps),
            late_rate_per_s=_late_rate(sums, end_s),
            compute_share=ratio(sums.compute_s, time_s),
            wait_share=ratio(wait_s, time_s),
            communicate_share=ratio(sums.exchange_s - wait_s, time_s),
            began_at_s=sums.began_s,
            ended_at_s=sums.ended_s,
        )


def _late_rate(sums: _WorkerSums, end_s: float) -> float:
    middle_s = end_s / 2
    if sums.began_s < middle_s and sums.ended_s > 0.9 * end_s:
        return ratio(sums.steps - bisect_left(sums.ends_s, middle_s), sums.ended_s - middle_s)
    return ratio(sums.steps, sums.ended_s - sums.began_s)


def ratio(above: float, below: float) -> float:
    return above / below if below > 0 else 0.0
