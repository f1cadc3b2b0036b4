"""Columns to draw, made from the records of a run and thinned to what a picture can show. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, TypeVar

from uneven.core.records import (
    EventRecord,
    ExchangeRecord,
    LineRecord,
    LoadRecord,
    ProfileRecord,
    RunRecord,
    ScalarRecord,
    SplitRecord,
    StepRecord,
)
from uneven.journal.apart import Places
from uneven.journal.changes import LEFT, MemberChanges
from uneven.journal.events import END, PLAN
from uneven.journal.messages import Messages
from uneven.journal.metrics import NAN, Iteration, Join, Timing, ratio
from uneven.journal.refreshes import Refreshes
from uneven.journal.summary import Summary, summarize

if TYPE_CHECKING:  # it is data, made by what reads files
    from uneven.journal.reader import Journal

T = TypeVar("T")
Column = list[float]


@dataclass(frozen=True, slots=True)
class RunData:
    """A whole run, joined and sorted, without what a later life repeated.

    Where each worker takes steps of its own, iterations are pieces as large as the global batch, and the iteration of
    everything else is the piece in which it was (``journal.apart``).

    Attributes:
        runs: rank → what its newest start said.
        loads: rank → use of machine and process.
        scalars: name → values by iteration; where several ranks logged one, the mean by what their batches count.
        events: what is worth a line in a list, splits included, in the order of iterations.
        exchanges: rank → its exchanges of parameters.
        threads: rank → thread → steps and samples, of workers that had several.
        messages: what passed between workers, by line.
        changes: of the members, in the order in which they happened.
        profiles: rank → what it measured of itself before the start, in its newest life.
        waits, known: whether any worker ever waits for others, and whether that is known.
    """

    name: str
    runs: dict[int, RunRecord]
    iterations: list[Iteration]
    summary: Summary
    loads: dict[int, list[LoadRecord]]
    scalars: dict[str, list[ScalarRecord]]
    splits: list[SplitRecord]
    events: list[EventRecord]
    unfinished: int = 0
    profiles: dict[int, ProfileRecord] = field(default_factory=dict)
    exchanges: dict[int, list[ExchangeRecord]] = field(default_factory=dict)
    threads: dict[int, dict[int, tuple[int, int]]] = field(default_factory=dict)
    messages: Messages = field(default_factory=Messages)
    refreshes: Refreshes = field(default_factory=Refreshes)
    changes: MemberChanges = field(default_factory=MemberChanges)
    waits: bool = True
    known: bool = True

    @property
    def apart(self) -> bool:
        """Whether each worker takes steps of its own."""
        return self.summary.apart

    @property
    def connected(self) -> bool:
        """Whether lines go on over stretches in which a worker has ended no step, as it is there all the time."""
        return self.apart and not self.changes

    @property
    def iteration_name(self) -> str:
        """What an iteration is called."""
        return iteration_name(self.apart)

    @property
    def told_to_leave(self) -> set[int]:
        """Workers that have left as they were told to."""
        return {event.rank for event in self.events if event.event == LEFT}

    @property
    def ranks(self) -> list[int]:
        """Everybody who took part at any time."""
        return sorted({rank for one in self.iterations for rank in one.timings} | set(self.runs))


def iteration_name(apart: bool) -> str:
    """What an iteration is called; where each worker takes steps of its own, there is none of all."""
    return "global batch" if apart else "iteration"


def run_data(journal: Journal, *, each: bool = False) -> RunData:
    """Everything that pictures are made of.

    Args:
        each: where each worker takes steps of its own, whether every step is an iteration by itself.
    """
    join = Join()
    join.pieces.each = each
    for record in journal.records():
        join.add(record)
    iterations = join.take(final=True)
    records = list(journal.records())
    loads: dict[int, list[LoadRecord]] = {}
    scalars: dict[str, list[ScalarRecord]] = {}
    exchanges: dict[int, list[ExchangeRecord]] = {}
    threads: dict[int, dict[int, tuple[int, int]]] = {}
    messages, refreshes = Messages(), Refreshes()
    for record in records:
        if isinstance(record, LoadRecord) and not join.superseded(record.iteration, record.at_s):
            loads.setdefault(record.rank, []).append(record)
        elif isinstance(record, ScalarRecord) and not join.superseded(record.iteration, record.at_s):
            if refreshes.add(record):
                continue
            scalars.setdefault(record.name, []).append(record)
        elif isinstance(record, ExchangeRecord) and not join.superseded(record.iteration, record.at_s):
            exchanges.setdefault(record.rank, []).append(record)
        elif isinstance(record, LineRecord) and not join.superseded(record.iteration, record.at_s):
            messages.add(record)
        elif (
            isinstance(record, StepRecord)
            and record.threads > 1
            and not join.superseded(record.iteration, record.ended_at_s)
        ):
            of_rank = threads.setdefault(record.rank, {})
            steps, samples = of_rank.get(record.thread, (0, 0))
            of_rank[record.thread] = (steps + 1, samples + record.batch)
    events = [r for r in records if isinstance(r, EventRecord) and r.event not in (PLAN, END)]
    changes = join.changes
    if join.apart and iterations:
        ends_s = [one.ended_at_s for one in iterations]

        def at(at_s: float) -> int:
            return iterations[min(bisect_left(ends_s, at_s), len(ends_s) - 1)].iteration

        events = [replace(event, iteration=at(event.at_s)) for event in events]
        loads = {rank: [replace(row, iteration=at(row.at_s)) for row in rows] for rank, rows in loads.items()}
        scalars = {name: _placed(rows, iterations) for name, rows in scalars.items()}
        changes = changes.placed(at)
    return RunData(
        name=journal.run.name,
        runs={r.rank: r for r in records if isinstance(r, RunRecord)},
        iterations=iterations,
        summary=summarize(iterations),
        loads=loads,
        scalars={name: one_each(rows) for name, rows in scalars.items()},
        splits=[r for r in records if isinstance(r, SplitRecord)],
        events=sorted(events, key=lambda event: (event.iteration, event.at_s)),
        unfinished=journal.unfinished,
        profiles={r.rank: r for r in records if isinstance(r, ProfileRecord)},
        exchanges=exchanges,
        threads=threads,
        messages=messages,
        refreshes=refreshes,
        changes=changes,
        waits=join.waits,
        known=join.known,
    )


def _placed(rows: Iterable[ScalarRecord], pieces: Sequence[Iteration]) -> list[ScalarRecord]:
    """Each in the piece in which its step ended; those of a last one that is not full, in the one before."""
    places = Places()
    full = [one.iteration for one in pieces if one.global_batch >= one.apart]
    for piece in pieces:
        for rank, timing in piece.timings.items():
            places.add(rank, timing.newest, piece.iteration)
    last = full[-1] if full else pieces[-1].iteration
    found = [(row, places.of(row.rank, row.iteration)) for row in rows]
    return [replace(row, iteration=last if place is None else min(place, last)) for row, place in found]


@dataclass(slots=True)
class WorkerSeries:
    """One worker's means over stretches of iterations, of its steps; NaN in a stretch that it had no part in.

    ``own_s`` is what a step takes it by itself: data, compute and its own side of the exchange.
    """

    iteration: Column = field(default_factory=list)
    share_percent: Column = field(default_factory=list)
    batch: Column = field(default_factory=list)
    own_s: Column = field(default_factory=list)
    data_s: Column = field(default_factory=list)
    compute_s: Column = field(default_factory=list)
    wait_s: Column = field(default_factory=list)
    communicate_s: Column = field(default_factory=list)
    speed_per_s: Column = field(default_factory=list)
    predicted_per_s: Column = field(default_factory=list)
    passes: Column = field(default_factory=list)


def stretches(rows: Sequence[T], most: int) -> list[Sequence[T]]:
    """Cut into at most ``most`` neighbouring pieces of nearly equal length, none of them empty."""
    pieces = min(most, len(rows))
    edges = [len(rows) * i // pieces for i in range(pieces + 1)] if pieces else []
    return [rows[low:high] for low, high in pairwise(edges)]


def worker_series(pieces: Iterable[Sequence[Iteration]], rank: int) -> WorkerSeries:
    """The columns of one worker."""
    series = WorkerSeries()
    pieces = list(pieces)
    its = [place for place, piece in enumerate(pieces) if any(rank in one.timings for one in piece)]
    for place, piece in enumerate(pieces):
        timings = [one.timings[rank] for one in piece if rank in one.timings]
        predicted = [one.predicted_per_s[rank] for one in piece if rank < len(one.predicted_per_s)]
        series.iteration.append(piece[len(piece) // 2].iteration)
        between = bool(its) and its[0] <= place <= its[-1]
        of = sum(one.global_batch for one in piece if rank in one.timings or (between and _idle(one, rank)))
        samples, own_s = sum(t.batch for t in timings), sum(t.local_s + t.transfer_s for t in timings)
        steps = sum(t.steps for t in timings)
        series.share_percent.append(100 * ratio(samples, of))
        for name in ("data_s", "compute_s", "wait_s", "communicate_s"):
            getattr(series, name).append(_mean_of(timings, name))
        series.passes.append(ratio(sum(t.passes for t in timings), len(timings)))
        series.batch.append(ratio(samples, steps))
        series.own_s.append(ratio(own_s, steps))
        series.speed_per_s.append(ratio(samples, own_s))
        series.predicted_per_s.append(mean(predicted))
    return series


def _idle(one: Iteration, rank: int) -> bool:
    """Whether a worker that has nothing in this piece was there all the same."""
    return bool(one.apart) and (not one.members or rank in one.members)


def thinned(rows: Sequence[T], most: int, x: Callable[[T], float], y: Callable[[T], float]) -> tuple[Column, Column]:
    """Two columns: the middle x and the mean y of each stretch."""
    pieces = stretches(rows, most)
    return [x(piece[len(piece) // 2]) for piece in pieces], [mean([y(row) for row in piece]) for piece in pieces]


def moving_limit(pieces: Iterable[Sequence[Iteration]]) -> tuple[Column, Column]:
    """Iteration → seconds in which all who are there could finish together, as fast as they are just then.

    X / Σ_i v_i as in :mod:`uneven.journal.summary`, in each stretch for itself: it moves with the load. A worker that
    takes nothing in a stretch is as fast as it was before.
    """
    x, y = Column(), Column()
    speeds: dict[int, float] = {}
    for piece in pieces:
        there = {rank for one in piece for rank in (one.members or one.timings)}
        there |= set(speeds) if piece[0].apart and not piece[0].members else set()
        for rank in there:
            timings = [one.timings[rank] for one in piece if rank in one.timings]
            speed = ratio(sum(t.batch for t in timings), sum(t.local_s for t in timings))
            if speed > 0.0:
                speeds[rank] = speed
        x.append(piece[0].iteration)
        batch = mean([one.apart or one.global_batch for one in piece])
        y.append(ratio(batch, sum(speeds.get(rank, 0.0) for rank in there)))
    return x, y


def training_s(iterations: Iterable[Iteration]) -> dict[int, float]:
    """Iteration → seconds trained when it ended; time in which the run was down does not count."""
    clock_s, at = 0.0, {}
    for one in iterations:
        local = max((timing.total_s for timing in one.timings.values()), default=0.0)
        clock_s += one.duration_s if one.duration_s == one.duration_s else local
        at[one.iteration] = clock_s
    return at


def one_each(rows: Iterable[ScalarRecord]) -> list[ScalarRecord]:
    by_iteration: dict[int, list[ScalarRecord]] = {}
    for row in rows:
        by_iteration.setdefault(row.iteration, []).append(row)
    return [replace(same[0], value=_over_all(same)) for _, same in sorted(by_iteration.items())]


def _over_all(rows: Sequence[ScalarRecord]) -> float:
    """The mean by what each worker's batch counted; of a loss, that over the global batch."""
    known = [row for row in rows if row.value == row.value and row.weight > 0.0]
    whole = sum(row.weight for row in known)
    return sum(row.value * row.weight for row in known) / whole if whole else mean([row.value for row in rows])


def mean(values: Sequence[float]) -> float:
    """Mean of those that are numbers; NaN if none is."""
    known = [value for value in values if value == value]
    return sum(known) / len(known) if known else NAN


def _mean_of(timings: Sequence[Timing], name: str) -> float:
    values = [(getattr(timing, name), timing.steps) for timing in timings]
    known = [(value, steps) for value, steps in values if value == value]
    return ratio(sum(value for value, _ in known), sum(steps for _, steps in known))
