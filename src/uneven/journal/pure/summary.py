"""The summary of a run: durations, shares of the time, and the distance from the limit.

The limit is the duration of an iteration if all workers finished simultaneously and communication were free: X / Σ_i
v_i, with v_i the measured samples of worker i per second of data and compute time. For asynchronous workers, X /
(samples per second) replaces the duration of an iteration.
"""

import math
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median, quantiles

from uneven.journal.pure.metrics import NAN, PHASES, Iteration, Timing, ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSummary:
    """The summary of one worker. Shares are of the time of its steps, 0 … 1; control is part of data and compute."""

    rank: int  #: the worker
    samples: int  #: trained samples
    steps: int  #: finished steps
    step_s: float  #: mean duration of a step
    speed_per_s: float  #: samples per second without waits
    data_share: float  #: waiting for the loader
    compute_share: float  #: forward and backward passes, and the optimizer
    wait_share: float  #: waiting for other workers
    communicate_share: float  #: the exchange, without the wait
    control_share: float  #: measuring and deciding
    prediction_error: float  #: median relative error of predicted speeds; NaN without predictions


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The summary of all workers, without iterations of unknown duration (the first after a start).

    Attributes:
        iteration_s: median duration, with quartiles ``iteration_low_s`` and ``iteration_high_s``; for asynchronous
            workers the mean seconds per global batch.
        mean_s, mean_per_s: the same as means over all of the time.
    """

    workers: tuple[WorkerSummary, ...]  #: by rank
    iterations: int  #: number of iterations, or of whole global batches
    samples: int  #: samples of all workers
    iteration_s: float
    iteration_low_s: float
    iteration_high_s: float
    samples_per_s: float  #: median of global batch ÷ duration; for asynchronous workers all samples ÷ all time
    mean_s: float
    mean_per_s: float
    data_share: float  #: share of all workers' time, 0 … 1, as in :class:`WorkerSummary`
    compute_share: float  #: as above
    wait_share: float  #: as above
    communicate_share: float  #: as above
    control_share: float  #: as above
    limit_s: float  #: X / Σ_i v_i for the median X; in elastic runs the mean over iterations for their members
    fraction_of_limit: float  #: ``limit_s / iteration_s``; 1 is perfect
    apart: bool = False  #: workers are asynchronous


@dataclass(slots=True)
class _Sums:
    batch: int = 0
    steps: int = 0
    data_s: float = 0.0
    compute_s: float = 0.0
    wait_s: float = 0.0
    communicate_s: float = 0.0
    control_s: float = 0.0
    errors: "array[float]" = field(default_factory=lambda: array("d"))

    def add(self, timing: Timing, predicted_per_s: float) -> None:
        self.batch += timing.batch
        self.steps += timing.steps
        self.data_s += timing.data_s
        self.compute_s += timing.compute_s
        self.wait_s += timing.wait_s
        self.communicate_s += timing.communicate_s
        self.control_s += timing.control_s
        error = abs(ratio(predicted_per_s, timing.speed_per_s) - 1)
        if math.isfinite(error):
            self.errors.append(error)

    @property
    def total_s(self) -> float:
        return self.data_s + self.compute_s + self.wait_s + self.communicate_s

    def shares(self) -> dict[str, float]:
        return {f"{part}_share": ratio(getattr(self, f"{part}_s"), self.total_s) for part in (*PHASES, "control")}


@dataclass(slots=True)
class Totals:
    """The sums over iterations. Memory grows by a few numbers per iteration, so a long run can be followed."""

    _workers: dict[int, _Sums] = field(default_factory=dict)
    _durations_s: "array[float]" = field(default_factory=lambda: array("d"))
    _batches: "array[int]" = field(default_factory=lambda: array("q"))
    _wholes: "array[int]" = field(default_factory=lambda: array("q"))  # global batches of asynchronous workers
    _members: Counter[tuple[int, ...]] = field(default_factory=Counter)  # iterations of each

    def add(self, iteration: Iteration) -> None:
        """Add an iteration, unless its duration is unknown."""
        if not math.isfinite(iteration.duration_s):
            return
        self._durations_s.append(iteration.duration_s)
        self._batches.append(iteration.global_batch)
        if iteration.apart:
            self._wholes.append(iteration.apart)
        self._members[iteration.members or (() if iteration.apart else tuple(iteration.timings))] += 1
        for rank, timing in iteration.timings.items():
            predicted = iteration.predicted_per_s[rank] if rank < len(iteration.predicted_per_s) else NAN
            self._workers.setdefault(rank, _Sums()).add(timing, predicted)

    def summary(self) -> Summary:
        """Return the summary; every number is NaN before the first iteration."""
        everybody = _Sums()
        for sums in self._workers.values():
            for part in ("batch", "steps", "data_s", "compute_s", "wait_s", "communicate_s", "control_s"):
                setattr(everybody, part, getattr(everybody, part) + getattr(sums, part))
        workers = tuple(_worker(rank, sums) for rank, sums in sorted(self._workers.items()))
        limits_s = {one: self._limit_s(workers, one) for one in self._members}
        limit_s = next(iter(limits_s.values()), NAN)
        if len(limits_s) > 1:
            limit_s = sum(self._members[one] * each_s for one, each_s in limits_s.items()) / self._members.total()
        rates = [batch / time for batch, time in zip(self._batches, self._durations_s, strict=True)]
        mean_per_s = ratio(sum(self._batches), math.fsum(self._durations_s))
        usual = self._usual()
        if self._wholes:
            low_s, _, high_s = _quartiles(ratio(usual, rate) for rate in rates)
            middle_s, per_s = ratio(usual, mean_per_s), mean_per_s
        else:
            low_s, middle_s, high_s = _quartiles(self._durations_s)
            per_s = _median(rates)
        return Summary(
            workers=workers,
            iterations=len(self._durations_s),
            samples=everybody.batch,
            iteration_s=middle_s,
            iteration_low_s=low_s,
            iteration_high_s=high_s,
            samples_per_s=per_s,
            mean_s=ratio(usual, mean_per_s),
            mean_per_s=mean_per_s,
            limit_s=limit_s,
            fraction_of_limit=ratio(limit_s, ratio(usual, mean_per_s) if len(limits_s) > 1 else middle_s),
            apart=bool(self._wholes),
            **everybody.shares(),
        )

    def _limit_s(self, workers: Sequence[WorkerSummary], members: tuple[int, ...]) -> float:
        """Return the least time in which these members (all workers if empty) could finish an iteration together."""
        there = [one for one in workers if not members or one.rank in members]
        speeds = [worker.speed_per_s for worker in there if math.isfinite(worker.speed_per_s)]
        return ratio(self._usual(), sum(speeds))

    def _usual(self) -> float:
        return _median(self._wholes or self._batches)


def summarize(over: Iterable[Iteration]) -> Summary:
    """Return the summary of the iterations ``over``."""
    totals = Totals()
    for iteration in over:
        totals.add(iteration)
    return totals.summary()


def _worker(rank: int, sums: _Sums) -> WorkerSummary:
    return WorkerSummary(
        rank=rank,
        samples=sums.batch,
        steps=sums.steps,
        step_s=ratio(sums.total_s, sums.steps),
        speed_per_s=ratio(sums.batch, sums.data_s + sums.compute_s),
        prediction_error=_median(sums.errors),
        **sums.shares(),
    )


def _median(values: Iterable[float]) -> float:
    kept = list(values)
    return median(kept) if kept else NAN


def _quartiles(values: Iterable[float]) -> tuple[float, float, float]:
    kept = list(values)
    if len(kept) < 2:
        return (kept[0],) * 3 if kept else (NAN,) * 3
    low, middle, high = quantiles(kept, n=4, method="inclusive")
    return low, middle, high
