"""The division of time: records of all ranks joined into iterations.

A single worker cannot distinguish waiting from communication. Under BSP the last worker to arrive waits for no other,
so in every iteration

* communicate = the least ``exchange_s`` of all ranks, the same for all of them;
* wait_i = exchange_i − communicate.

If m threads of a worker train concurrently, a step takes the worker 1/m of the thread's time.

Asynchronous workers (``Pace.apart``) have no common iterations. Pieces as large as the global batch replace them
(``journal.pure.apart``). If no worker ever waits, the whole exchange is communication.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from uneven.errors import ConfigError
from uneven.journal.pure.apart import Pieces, StepsPiece
from uneven.journal.pure.member_changes import LEFT, MemberChanges
from uneven.journal.pure.messages import END
from uneven.policy.core.pace import PACE, Pace
from uneven.policy.core.records import (
    EventRecord,
    ForecastRecord,
    MeetingsRecord,
    MembershipRecord,
    Record,
    RunRecord,
    SplitRecord,
    StepRecord,
)


def recorded_pace(settings: Mapping[str, Any]) -> Pace | None:
    """Return the pace in a run record's settings; None if unknown."""
    said, sync = settings.get(PACE), settings.get("sync")
    if said is not None:
        return next((pace for pace in Pace if pace.value == said), None)
    if not isinstance(sync, str):
        return None
    # Older journals only hold the policy's name, whose facts determine the pace.
    from uneven.policy.sync import policies  # here, because it doubles the import time of a journal's reader

    try:
        facts = policies.resolve(sync).facts
    except ConfigError:  # an object instead of a name, or a plug-in that is not installed here
        return None
    return None if facts is None else facts.pace


NAN = float("nan")
PHASES = ("data", "compute", "wait", "communicate")  # of a step; they do not overlap


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """The division of the time of a worker's step. Data, compute, wait and communicate do not overlap."""

    rank: int  #: the worker
    batch: int  #: its samples
    data_s: float  #: waiting for the loader
    compute_s: float  #: forward and backward passes, and the optimizer
    wait_s: float  #: waiting for other workers
    communicate_s: float  #: the exchange, without the wait
    control_s: float  #: measuring and deciding; part of data and compute
    transfer_s: float = 0.0  #: part of the exchange in which its own bytes moved
    passes: int = 1  #: forward and backward passes
    steps: int = 1  #: number of steps summed here; several only for asynchronous workers
    newest: int = -1  #: the number of the last of them; -1 if it is the iteration's

    @property
    def local_s(self) -> float:
        """The time without the exchange."""
        return self.data_s + self.compute_s

    @property
    def total_s(self) -> float:
        """The seconds of the whole step."""
        return self.local_s + self.wait_s + self.communicate_s

    @property
    def speed_per_s(self) -> float:
        """The samples per second of local and transfer time, as speeds are predicted."""
        return ratio(self.batch, self.local_s + self.transfer_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Iteration:
    """A step of all workers or, for asynchronous workers, a piece."""

    iteration: int  #: its number; for a piece, the number of full global batches before it
    epoch: int  #: the number of the epoch, from 0
    global_batch: int  #: samples of all workers; a piece may have some more, and the last one fewer
    ended_at_s: float  #: Unix time at which the last worker finished
    duration_s: float  #: since the end of the previous iteration; NaN for the first after a start, unless a piece
    timings: dict[int, Timing]  #: by rank, ascending
    #: samples/s by rank: the newest prediction, or the one behind the current split; may be empty
    predicted_per_s: tuple[float, ...] = ()
    members: tuple[int, ...] = ()  #: workers that share it, in elastic runs; otherwise empty
    apart: int = 0  #: samples of a whole global batch if this is a piece; 0 for a step of all workers

    @property
    def whole_s(self) -> float:
        """The seconds for a whole global batch at this rate."""
        return ratio(self.duration_s * self.apart, self.global_batch) if self.apart else self.duration_s


@dataclass(slots=True)
class Join:
    """The records so far, joined into iterations. The newest life of a resumed run replaces what it repeats."""

    rewound: bool = False  # iterations taken before are repeated: start again with a new Join
    changes: MemberChanges = field(default_factory=MemberChanges)  # of the membership
    apart: bool = False  # workers are asynchronous
    waits: bool = True  # workers ever wait for others
    known: bool = True  # both are known, not assumed as under bsp
    pieces: Pieces = field(default_factory=Pieces)  # the pieces of asynchronous workers
    _pending: dict[int, dict[int, StepRecord]] = field(default_factory=dict)
    # By iteration and rank: seconds of waiting at each meeting.
    _meetings: dict[int, dict[int, tuple[float, ...]]] = field(default_factory=dict)
    _splits: list[SplitRecord] = field(default_factory=list)
    _forecasts: dict[int, list[ForecastRecord]] = field(default_factory=dict)  # by rank, ascending iterations
    _starts: list[float] = field(default_factory=list)  # of every life, from rank 0
    _resumed: list[tuple[float, int]] = field(default_factory=list)  # later lives: start, first iteration
    _opening: list[SplitRecord] | None = None  # splits of a life with a first iteration still unknown
    _before: int = -1  # iteration taken last
    _ends: list[float] = field(default_factory=list)  # of the newest consecutive iterations, one for each thread
    _expected: set[int] = field(default_factory=set)  # ranks without an END or LEFT event
    _size: int = 1  # workers at the start
    _first_ends: dict[int, float] = field(default_factory=dict)  # of rank 0's own steps
    _repeated: list[tuple[float, float]] = field(default_factory=list)  # asynchronous: intervals whose steps were lost

    def add(self, record: Record) -> None:
        """Add a record; kinds without influence are ignored."""
        if isinstance(record, StepRecord):
            self._add_step(record)
        elif isinstance(record, SplitRecord):
            (self._splits if self._opening is None else self._opening).append(record)
        elif isinstance(record, ForecastRecord):
            told = self._forecasts.setdefault(record.rank, [])
            while told and told[-1].iteration >= record.iteration:  # a later life repeats these iterations
                told.pop()
            told.append(record)
        elif isinstance(record, MeetingsRecord):
            self._meetings.setdefault(record.iteration, {})[record.rank] = record.seconds
        elif isinstance(record, MembershipRecord):
            self.changes.add(record, apart=self.apart)
            self._expected = (self._expected | {*record.came}) - {*record.left}
        elif isinstance(record, EventRecord):
            self._expected -= {record.rank} if record.event in (END, LEFT) else set()
        elif isinstance(record, RunRecord):
            self._add_start(record)

    def superseded(self, iteration: int, at_s: float) -> bool:
        """Return whether a later life has repeated this iteration, or will."""
        if self.apart:
            return any(since_s < at_s < start_s for since_s, start_s in self._repeated)
        return any(at_s < start and first <= iteration for start, first in self._resumed)

    def life(self, at_s: float) -> int:
        """Return the number of starts of the run before a Unix time."""
        return bisect_left(self._starts, at_s)

    def _add_start(self, record: RunRecord) -> None:
        pace = recorded_pace(record.settings)
        self.known = self.known and (pace is not None or "sync" not in record.settings)
        if pace is not None:
            self.waits = pace.waits
            if pace.apart and not self.apart:
                self.apart, self.rewound = True, self.rewound or self._before >= 0
                for steps in self._pending.values():
                    for step in steps.values():
                        self.pieces.add(step)
                self._pending.clear()
        self._expected.add(record.rank)
        if record.rank == 0:
            self._expected |= set(range(record.world_size))
            self._size = record.world_size
            self._starts.append(record.started_at_s)
            self._opening = [] if len(self._starts) > 1 else None

    def _add_step(self, step: StepRecord) -> None:
        if step.rank == 0 and self._opening is not None:
            self._open_life(self._starts[-1], step.iteration, self._opening)
        if self.superseded(step.iteration, step.ended_at_s):
            return
        if self.apart:
            self.pieces.add(step)
            if step.rank == 0:
                self._first_ends[step.iteration] = step.ended_at_s
        else:
            self._pending.setdefault(step.iteration, {})[step.rank] = step

    def _open_life(self, start_s: float, first: int, splits: list[SplitRecord]) -> None:
        self._opening = None
        if self.apart:  # all resume from rank 0's state in the checkpoint; other ranks' step numbers do not matter
            self._first_ends = {step: at_s for step, at_s in self._first_ends.items() if step < first}
            since_s = max(self._first_ends.values(), default=-math.inf)
            self._repeated.append((since_s, start_s))
            self.rewound = not self.pieces.drop(since_s, start_s) or self.rewound
            return
        self._resumed.append((start_s, first))
        self.rewound = self.rewound or first <= self._before
        self._splits = [split for split in self._splits if split.iteration < first] + splits
        for iteration in [i for i in self._pending if i >= first]:
            steps = self._pending[iteration]
            self._pending[iteration] = {r: s for r, s in steps.items() if s.ended_at_s >= start_s}

    def take(self, *, final: bool = False) -> list[Iteration]:
        """Return finished iterations that were not taken before, in order."""
        if self.apart:
            pieces = self.pieces.take(self._expected - self.changes.gone, self._starts, final=final)
            return [self._of_piece(one) for one in pieces]
        # Complete means that the batches add up to the global batch, or that only departed workers are missing.
        complete = [i for i in sorted(self._pending) if self._adds_up(i) or self._lacks_the_gone(i)]
        if not final:
            complete = complete[:-1]  # workers without samples in the newest one may still report
        taken = [self._joined(iteration, self._pending.pop(iteration)) for iteration in complete]
        if taken:
            for iteration in [i for i in self._pending if i < taken[-1].iteration]:
                del self._pending[iteration]
        return taken

    def _adds_up(self, iteration: int) -> bool:
        steps = self._pending[iteration]
        if not steps:
            return False
        whole = next(iter(steps.values())).global_batch
        # A worker without a session knows its own batch only.
        return sum(step.batch for step in steps.values()) == whole if whole else len(steps) == self._size

    def _members(self, iteration: int) -> tuple[int, ...]:
        return self.changes.members(iteration) or self.changes.founders() or ()

    def _lacks_the_gone(self, iteration: int) -> bool:
        missing = set(self._members(iteration)) - set(self._pending[iteration])
        return bool(missing) and missing <= self.changes.gone  # their last records are lost with them

    def _joined(self, iteration: int, steps: dict[int, StepRecord]) -> Iteration:
        first = next(iter(steps.values()))
        communicate_s = self._communicated(iteration, steps)
        ended_at_s = max(step.ended_at_s for step in steps.values())
        duration_s = self._duration(iteration, ended_at_s, max(step.threads for step in steps.values()))
        self._before = iteration
        return Iteration(
            iteration=iteration,
            epoch=first.epoch,
            global_batch=first.global_batch or sum(step.batch for step in steps.values()),
            ended_at_s=ended_at_s,
            duration_s=duration_s,
            timings={rank: _timing(steps[rank], communicate_s) for rank in sorted(steps)},
            predicted_per_s=self._predicted(iteration),
            members=self._members(iteration) if self.changes else (),
        )

    def _communicated(self, iteration: int, steps: dict[int, StepRecord]) -> float:
        """Return the seconds in which no worker waited for another: of each meeting if they are known, of the step
        otherwise."""
        meetings = self._meetings.pop(iteration, {})
        least_s = min(step.exchange_s / step.threads for step in steps.values())
        if set(meetings) != set(steps) or len({len(seconds) for seconds in meetings.values()}) != 1:
            return least_s
        together_s: float = sum(min(each) for each in zip(*meetings.values(), strict=True))
        return min(least_s, together_s)

    def _of_piece(self, piece: StepsPiece) -> Iteration:
        steps: dict[int, list[StepRecord]] = {}
        for one in piece.steps:
            steps.setdefault(one.rank, []).append(one)
        waits_over_s = min(one.exchange_s / one.threads for one in piece.steps) if self.waits else math.inf
        self._before = piece.number
        return Iteration(
            iteration=piece.number,
            epoch=piece.steps[-1].epoch,
            global_batch=sum(one.batch for one in piece.steps),
            ended_at_s=piece.ended_at_s,
            duration_s=piece.duration_s if piece.duration_s > 0 else NAN,
            timings={rank: _timing_of_all(steps[rank], waits_over_s) for rank in sorted(steps)},
            members=(self.changes.members_at(piece.ended_at_s) or ()) if self.changes else (),
            apart=piece.whole,
        )

    def _duration(self, iteration: int, ended_at_s: float, threads: int) -> float:
        ends = self._ends
        resumed = bool(ends) and any(ends[-1] < start <= ended_at_s for start in self._starts)
        if self._before != iteration - 1 or resumed:
            ends.clear()
        del ends[:-threads]  # steps of concurrent threads may end close together, so average over one of each
        passed_s = (ended_at_s - ends[0]) / len(ends) if ends else NAN
        ends.append(ended_at_s)
        return passed_s if passed_s > 0 else NAN

    def _predicted(self, iteration: int) -> tuple[float, ...]:
        while len(self._splits) > 1 and self._splits[1].iteration <= iteration:
            del self._splits[0]
        in_force = self._splits and self._splits[0].iteration <= iteration
        predicted = list(self._splits[0].predicted_per_s) if in_force else []
        for rank, told in self._forecasts.items():
            while len(told) > 1 and told[1].iteration <= iteration:
                del told[0]
            if told and told[0].iteration <= iteration and told[0].predicted_per_s > 0:
                predicted += [NAN] * (rank + 1 - len(predicted))
                predicted[rank] = told[0].predicted_per_s
        return tuple(predicted)


def iterations(records: Iterable[Record]) -> list[Iteration]:
    """Return all finished iterations of a run, in order, from its ``records``."""
    join = Join()
    for record in records:
        join.add(record)
    return join.take(final=True)


def _timing(step: StepRecord, communicate_s: float) -> Timing:
    side_by_side = step.threads
    return Timing(
        rank=step.rank,
        batch=step.batch,
        data_s=step.data_s / side_by_side,
        compute_s=step.compute_s / side_by_side,
        wait_s=step.exchange_s / side_by_side - communicate_s,
        communicate_s=communicate_s,
        control_s=step.control_s / side_by_side,
        transfer_s=step.transfer_s / side_by_side,
        passes=step.passes,
    )


_SUMMED = ("batch", *(f"{phase}_s" for phase in PHASES), "control_s", "transfer_s")


def _timing_of_all(steps: list[StepRecord], communicate_s: float) -> Timing:
    """Return the sums over a worker's steps; at most ``communicate_s`` of each exchange is communication."""
    each = [_timing(step, min(communicate_s, step.exchange_s / step.threads)) for step in steps]
    return Timing(
        rank=steps[0].rank,
        **{name: sum(getattr(one, name) for one in each) for name in _SUMMED},
        passes=max(one.passes for one in each),
        steps=len(each),
        newest=steps[-1].iteration,
    )


def ratio(above: float, below: float) -> float:
    return above / below if below > 0 else NAN


def goodput(iterations: Sequence[Iteration], changes: MemberChanges) -> float:
    """Return the samples that counted ÷ those that the members could have computed, 0 … 1; NaN if they never changed.

    A worker's capacity is its rate during data loading and compute, without waits, communication and pauses.
    """
    if not changes or not iterations:
        return float("nan")
    first, last_s = iterations[0], iterations[-1].ended_at_s
    first_s = first.ended_at_s - max(one.total_s for one in first.timings.values())
    samples: dict[int, int] = {}
    busy_s: dict[int, float] = {}
    for one in iterations:
        for rank, timing in one.timings.items():
            samples[rank] = samples.get(rank, 0) + timing.batch
            busy_s[rank] = busy_s.get(rank, 0.0) + timing.local_s
    could = 0.0
    for rank, spans in changes.presence().items():
        there_s = sum(max(0.0, min(until, last_s) - max(since, first_s)) for since, until in spans)
        could += there_s * (ratio(samples.get(rank, 0), busy_s.get(rank, 0.0)) if rank in samples else 0.0)
    return ratio(sum(one.global_batch for one in iterations), could)
