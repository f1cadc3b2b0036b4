"""The state of a run for a view: fed with records, queried at any time."""

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from uneven.journal.pure.exchanges import Exchanged
from uneven.journal.pure.member_changes import LEFT, MemberChanges
from uneven.journal.pure.messages import END, Messages, planned_iterations
from uneven.journal.pure.metrics import NAN, Iteration, Join
from uneven.journal.pure.refreshes import Refreshes
from uneven.journal.pure.summary import Summary, Totals, summarize
from uneven.journal.report.pure.chart_series import iteration_name
from uneven.policy.core.records import (
    EventRecord,
    ExchangeRecord,
    LineRecord,
    LoadRecord,
    MembershipRecord,
    Record,
    RunRecord,
    ScalarRecord,
    SplitRecord,
    StepRecord,
)

RECENT = 30  # iterations averaged for "now"


@dataclass(slots=True)
class RunProgress:
    """The run so far: sums, newest values and the last few iterations, not the records."""

    runs: dict[int, RunRecord] = field(default_factory=dict)  # rank → its newest start
    loads: dict[int, LoadRecord] = field(default_factory=dict)  # rank → newest use of machine and process
    scalars: dict[str, ScalarRecord] = field(default_factory=dict)  # newest of the lowest rank that logged it
    # Newest last; with splits and membership changes, without plans and ends.
    events: deque[EventRecord | SplitRecord | MembershipRecord] = field(default_factory=lambda: deque(maxlen=50))
    messages: Messages = field(default_factory=Messages)  # traffic between workers, by connection
    refreshes: Refreshes = field(default_factory=Refreshes)  # of preconditioners, by owner
    exchanged: Exchanged = field(default_factory=Exchanged)  # parameter exchanges of all workers, without gradients
    threads: Counter[tuple[int, int]] = field(default_factory=Counter)  # (rank, thread) → steps, if it has several
    steps: Counter[int] = field(default_factory=Counter)  # by rank, with those that a resumed run repeats
    samples: Counter[int] = field(default_factory=Counter)  # of these steps
    repeated: int = 0  # samples of steps that a resumed run repeats
    happened: Counter[str] = field(default_factory=Counter)  # name of an event → number of such events
    planned: int | None = None  # iterations of the whole run; None if unknown
    last: Iteration | None = None  # newest finished iteration
    newest_s: float = NAN  # Unix time of the newest iteration
    changes: MemberChanges = field(default_factory=MemberChanges)  # of the membership
    _newest: dict[int, int] = field(default_factory=dict)  # rank → its greatest step
    _before: dict[int, int] = field(default_factory=dict)  # the same, when its newest life began
    _ended: set[int] = field(default_factory=set)
    _left: set[int] = field(default_factory=set)
    _join: Join = field(default_factory=Join)
    _recent: deque[Iteration] = field(default_factory=lambda: deque(maxlen=RECENT))
    _totals: Totals = field(default_factory=Totals)

    def feed(self, records: Iterable[Record]) -> None:
        """Add new records, rank by rank."""
        for record in records:
            self._join.add(record)
            self._note(record)
        self._count(final=self.ended)

    def _count(self, *, final: bool) -> None:
        for iteration in self._join.take(final=final):
            self._totals.add(iteration)
            self._recent.append(iteration)
            self.last = iteration
            self.newest_s = iteration.ended_at_s

    def _note(self, record: Record) -> None:
        if isinstance(record, StepRecord):
            self._note_step(record)
        elif isinstance(record, RunRecord):
            self.runs[record.rank] = record
            self._before[record.rank] = self._newest.get(record.rank, -1)
            self._ended.discard(record.rank)
        elif isinstance(record, LoadRecord):
            self.loads[record.rank] = record
        elif isinstance(record, ScalarRecord):
            known = self.scalars.get(record.name)
            if not self.refreshes.add(record) and (known is None or record.rank <= known.rank):
                self.scalars[record.name] = record
        elif isinstance(record, SplitRecord):
            self.events.append(record)
        elif isinstance(record, ExchangeRecord):
            self.exchanged.add(record)
        elif isinstance(record, LineRecord):
            self.messages.add(record)
        elif isinstance(record, MembershipRecord):
            if self.changes.add(record, apart=self._join.apart):
                self.events.append(record)
        elif isinstance(record, EventRecord):
            self._note_event(record)

    def _note_step(self, step: StepRecord) -> None:
        if step.threads > 1:
            self.threads[step.rank, step.thread] += 1
        self.steps[step.rank] += 1
        self.samples[step.rank] += step.batch
        if step.iteration <= self._before.get(step.rank, -1):
            self.repeated += step.batch
        self._newest[step.rank] = max(step.iteration, self._newest.get(step.rank, -1))

    def _note_event(self, event: EventRecord) -> None:
        plan = planned_iterations(event)
        if plan is not None:
            self.planned = plan
        elif event.event in (END, LEFT):
            self._ended.add(event.rank)
            if event.event == LEFT:
                self._left.add(event.rank)
        else:
            self.events.append(event)
            self.happened[event.event] += 1

    @property
    def apart(self) -> bool:
        return self._join.apart

    @property
    def iteration_name(self) -> str:
        return iteration_name(self.apart)

    @property
    def rewound(self) -> bool:
        return self._join.rewound

    @property
    def ended(self) -> bool:
        """True if rank 0 has ended, or all known workers that are still members."""
        if 0 in self._ended and 0 not in self._left:
            return True
        return bool(self.runs) and self._ended >= set(self.runs) - self.changes.gone

    @property
    def gone(self) -> frozenset[int]:
        """The workers that have left or failed while the others continued."""
        return self.changes.gone | self._left

    @property
    def members(self) -> int:
        """The number of workers that take part."""
        changes = self.changes.all
        if changes:
            return len(changes[-1].members)
        # A run directory may be used again with fewer workers.
        return min(len(self.runs), self.runs[0].world_size) if 0 in self.runs else len(self.runs)

    def shares(self) -> dict[int, int]:
        """Return samples by rank in the newest full iteration; if asynchronous, recent shares of a global batch."""
        if not self._recent:
            return {}
        if self.apart:
            taken: Counter[int] = Counter()
            for one in self._recent:
                taken.update({rank: timing.batch for rank, timing in one.timings.items()})
            whole = self._recent[-1].apart
            return {rank: round(whole * samples / taken.total()) for rank, samples in taken.items()}
        # The last iteration of an epoch may be small and does not show the split.
        largest = max(one.global_batch for one in self._recent)
        newest = next(one for one in reversed(self._recent) if one.global_batch == largest)
        return {rank: timing.batch for rank, timing in newest.timings.items()}

    def now(self) -> Summary:
        return summarize(self._recent)

    def total(self) -> Summary:
        return self._totals.summary()

    def time_left_s(self) -> float:
        """Return the remaining seconds at the recent rate; NaN without a plan or a rate."""
        known = [one.duration_s for one in self._recent if one.duration_s == one.duration_s]
        if self.planned is None or self.last is None or not known:
            return NAN
        return max(0, self.planned - self.last.iteration - 1) * sum(known) / len(known)
