"""The columns to draw, computed from a run's records and thinned to a picture's resolution."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, TypeVar

from uneven.journal.pure.apart import Places
from uneven.journal.pure.member_changes import LEFT, MemberChanges
from uneven.journal.pure.messages import END, PLAN, Messages
from uneven.journal.pure.metrics import NAN, PHASES, Iteration, Join, Timing, ratio
from uneven.journal.pure.refreshes import Refreshes
from uneven.journal.pure.summary import Summary, summarize
from uneven.policy.core.records import (
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

if TYPE_CHECKING:  # a Pure module must not import one that reads files
    from uneven.journal.reader import Journal

T = TypeVar("T")
Dated = TypeVar("Dated", LoadRecord, ScalarRecord, ExchangeRecord, LineRecord)
Column = list[float]


@dataclass(frozen=True, slots=True)
class RunData:
    """A whole run, joined and sorted, without iterations that a later life repeated.

    For asynchronous workers, iterations are pieces (``journal.pure.apart``), and everything else is assigned to a
    piece.
    """

    name: str
    runs: dict[int, RunRecord]  # rank → its newest start
    iterations: list[Iteration]
    summary: Summary
    loads: dict[int, list[LoadRecord]]  # rank → use of machine and process
    scalars: dict[str, list[ScalarRecord]]  # name → values by iteration, the weighted mean over ranks
    splits: list[SplitRecord]
    events: list[EventRecord]  # events to list, splits included, by iteration
    unfinished: int = 0
    profiles: dict[int, ProfileRecord] = field(default_factory=dict)  # rank → its cost curve before its newest start
    exchanges: dict[int, list[ExchangeRecord]] = field(default_factory=dict)  # rank → its parameter exchanges
    threads: dict[int, dict[int, tuple[int, int]]] = field(default_factory=dict)  # rank → thread → steps, samples
    messages: Messages = field(default_factory=Messages)  # traffic between workers, by connection
    refreshes: Refreshes = field(default_factory=Refreshes)
    changes: MemberChanges = field(default_factory=MemberChanges)  # of the membership, in order
    waits: bool = True  # whether workers ever wait
    known: bool = True  # whether that is known

    @property
    def apart(self) -> bool:
        """True if workers are asynchronous."""
        return self.summary.apart

    @property
    def connected(self) -> bool:
        """True if lines continue over intervals without a step, because the worker was present all the time."""
        return self.apart and not self.changes

    @property
    def iteration_name(self) -> str:
        return iteration_name(self.apart)

    @property
    def told_to_leave(self) -> set[int]:
        """The workers that left on request."""
        return {event.rank for event in self.events if event.event == LEFT}

    @property
    def ranks(self) -> list[int]:
        return sorted({rank for one in self.iterations for rank in one.timings} | set(self.runs))


def iteration_name(apart: bool) -> str:
    """Return the name of an iteration, which for asynchronous workers is a global batch."""
    return "global batch" if apart else "iteration"


def run_data(journal: "Journal", *, each: bool = False) -> RunData:
    """Return all data for pictures; with ``each``, every step of asynchronous workers is an iteration."""
    join = Join()
    join.pieces.each = each
    records = list(journal.records())
    for record in records:
        join.add(record)
    iterations = join.take(final=True)
    loads: dict[int, list[LoadRecord]] = {}
    scalars: dict[str, list[ScalarRecord]] = {}
    exchanges: dict[int, list[ExchangeRecord]] = {}
    threads: dict[int, dict[int, tuple[int, int]]] = {}
    messages, refreshes = Messages(), Refreshes()

    def kept(kind: type[Dated]) -> Iterator[Dated]:
        return (r for r in records if isinstance(r, kind) and not join.superseded(r.iteration, r.at_s))

    for load in kept(LoadRecord):
        loads.setdefault(load.rank, []).append(load)
    for scalar in kept(ScalarRecord):
        if not refreshes.add(scalar):
            scalars.setdefault(scalar.name, []).append(scalar)
    for exchange in kept(ExchangeRecord):
        exchanges.setdefault(exchange.rank, []).append(exchange)
    for line in kept(LineRecord):
        messages.add(line)
    for step in (r for r in records if isinstance(r, StepRecord) and r.threads > 1):
        if not join.superseded(step.iteration, step.ended_at_s):
            of_rank = threads.setdefault(step.rank, {})
            steps, samples = of_rank.get(step.thread, (0, 0))
            of_rank[step.thread] = (steps + 1, samples + step.batch)
    events = [r for r in records if isinstance(r, EventRecord) and r.event not in (PLAN, END)]
    changes = join.changes
    if join.apart and iterations:
        ends_s = [one.ended_at_s for one in iterations]

        def at(at_s: float) -> int:
            return iterations[min(bisect_left(ends_s, at_s), len(ends_s) - 1)].iteration

        events = [replace(event, iteration=at(event.at_s)) for event in events]
        loads = {rank: [replace(row, iteration=at(row.at_s)) for row in rows] for rank, rows in loads.items()}
        scalars = {name: _placed(rows, iterations, join.life) for name, rows in scalars.items()}
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


def _placed(
    rows: Iterable[ScalarRecord], pieces: Sequence[Iteration], life: Callable[[float], int]
) -> list[ScalarRecord]:
    """Assign each row to the piece in which its step ended; rows of an incomplete last piece to the one before."""
    places = Places()
    full = [one.iteration for one in pieces if one.global_batch >= one.apart]
    for piece in pieces:
        for rank, timing in piece.timings.items():
            places.add((rank, life(piece.ended_at_s)), timing.newest, piece.iteration)
    last = full[-1] if full else pieces[-1].iteration
    found = [(row, places.of((row.rank, life(row.at_s)), row.iteration)) for row in rows]
    return [replace(row, iteration=last if place is None else min(place, last)) for row, place in found]


@dataclass(slots=True)
class WorkerSeries:
    """A worker's means over intervals of iterations, of its steps; NaN in intervals without it."""

    iteration: Column = field(default_factory=list)
    share_percent: Column = field(default_factory=list)
    batch: Column = field(default_factory=list)
    own_s: Column = field(default_factory=list)  # data, compute and its own side of the exchange
    data_s: Column = field(default_factory=list)
    compute_s: Column = field(default_factory=list)
    wait_s: Column = field(default_factory=list)
    communicate_s: Column = field(default_factory=list)
    speed_per_s: Column = field(default_factory=list)
    predicted_per_s: Column = field(default_factory=list)
    passes: Column = field(default_factory=list)


def stretches(rows: Sequence[T], most: int) -> list[Sequence[T]]:
    """Cut rows into at most ``most`` consecutive, nonempty pieces of nearly equal length."""
    pieces = min(most, len(rows))
    edges = [len(rows) * i // pieces for i in range(pieces + 1)] if pieces else []
    return [rows[low:high] for low, high in pairwise(edges)]


def worker_series(pieces: Iterable[Sequence[Iteration]], rank: int) -> WorkerSeries:
    series = WorkerSeries()
    pieces = list(pieces)
    its = [place for place, piece in enumerate(pieces) if any(rank in one.timings for one in piece)]
    for place, piece in enumerate(pieces):
        timings = [one.timings[rank] for one in piece if rank in one.timings]
        predicted = [one.predicted_per_s[rank] for one in piece if rank < len(one.predicted_per_s)]
        series.iteration.append(piece[len(piece) // 2].iteration)
        # A present worker without a step in a piece has share 0, but before its first and after its last one, NaN.
        between = bool(its) and its[0] <= place <= its[-1]
        of = sum(one.global_batch for one in piece if rank in one.timings or (between and _idle(one, rank)))
        samples, own_s = sum(t.batch for t in timings), sum(t.local_s + t.transfer_s for t in timings)
        steps = sum(t.steps for t in timings)
        series.share_percent.append(100 * ratio(samples, of))
        for phase in PHASES:
            getattr(series, f"{phase}_s").append(_mean_of(timings, f"{phase}_s"))
        series.passes.append(ratio(sum(t.passes for t in timings), len(timings)))
        series.batch.append(ratio(samples, steps))
        series.own_s.append(ratio(own_s, steps))
        series.speed_per_s.append(ratio(samples, own_s))
        series.predicted_per_s.append(mean(predicted))
    return series


def _idle(one: Iteration, rank: int) -> bool:
    """Return whether a worker without samples in this piece was present."""
    return bool(one.apart) and (not one.members or rank in one.members)


def thinned(rows: Sequence[T], most: int, x: Callable[[T], float], y: Callable[[T], float]) -> tuple[Column, Column]:
    """Return two columns: the middle x and the mean y of each interval."""
    pieces = stretches(rows, most)
    return [x(piece[len(piece) // 2]) for piece in pieces], [mean([y(row) for row in piece]) for piece in pieces]


def moving_limit(pieces: Iterable[Sequence[Iteration]]) -> tuple[Column, Column]:
    """Return iterations and the seconds in which all members could finish together at their current speeds."""
    x, y = Column(), Column()  # of each interval, X / Σ_i v_i of uneven.journal.pure.summary
    speeds: dict[int, float] = {}
    for piece in pieces:
        there = {rank for one in piece for rank in (one.members or one.timings)}
        there |= set(speeds) if piece[0].apart and not piece[0].members else set()
        for rank in there:
            timings = [one.timings[rank] for one in piece if rank in one.timings]
            speed = ratio(sum(t.batch for t in timings), sum(t.local_s for t in timings))
            if speed > 0.0:
                speeds[rank] = speed  # a worker without samples keeps its last speed
        x.append(piece[0].iteration)
        batch = mean([one.apart or one.global_batch for one in piece])
        y.append(ratio(batch, sum(speeds.get(rank, 0.0) for rank in there)))
    return x, y


def training_s(iterations: Iterable[Iteration]) -> dict[int, float]:
    """Return iteration → seconds trained at its end, without downtime."""
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
    """Return the mean weighted by each batch's weight; for a loss, the mean over the global batch."""
    known = [row for row in rows if row.value == row.value and row.weight > 0.0]
    whole = sum(row.weight for row in known)
    return sum(row.value * row.weight for row in known) / whole if whole else mean([row.value for row in rows])


def mean(values: Sequence[float]) -> float:
    """Return the mean of the values that are not NaN; NaN if there is none."""
    known = [value for value in values if value == value]
    return sum(known) / len(known) if known else NAN


def _mean_of(timings: Sequence[Timing], name: str) -> float:
    values = [(getattr(timing, name), timing.steps) for timing in timings]
    known = [(value, steps) for value, steps in values if value == value]
    return ratio(sum(value for value, _ in known), sum(steps for _, steps in known))
