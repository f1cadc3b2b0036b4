"""What is written down: one line of the journal per record. Pure.

A record is frozen plain data. ``to_json`` and ``from_json`` are exact inverses; an unknown kind, a missing field or
one of another type or range than its annotation says is refused, an unknown field is ignored, so that a newer journal
can be read by older code as long as the schema number is the same.
"""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Annotated, Any, ClassVar

from uneven.core.plain import Along, Count, Range, Reader, reader
from uneven.errors import JournalError

SCHEMA = 1
"""Version of the journal. Raised when a field changes its meaning or disappears."""

SHARE = "share"
"""Among the settings of a run record: the cores that the launcher held this worker to, if it did."""

Rank = Annotated[int, Range(0, 2**20)]
"""Readers make lists that are as long as the greatest rank."""
Several = Annotated[int, Range(1, 2**20)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """First line of every rank's journal: what this run is."""

    kind: ClassVar[str] = "run"
    schema: int = SCHEMA
    run: str
    rank: Rank
    world_size: Several
    host: str
    pid: Annotated[int, Range(0, 2**31 - 1)]
    started_at_s: float  # Unix time
    world: str = "real"  # "real", "emulated" or "simulated"
    settings: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One iteration of one worker.

    ``exchange_s`` is the part of the exchange that the backward pass did not hide. A worker alone cannot
    tell how much of it was waiting for others and how much was communication: the worker that arrived last
    waited for nobody, so ``journal.metrics`` takes the least ``exchange_s`` of an iteration as its
    communication time and the rest of each worker's as its wait.
    """

    kind: ClassVar[str] = "step"
    rank: Rank
    iteration: Count  # counted over the whole run, from 0
    epoch: Count
    batch: Count  # samples of this worker that count; 0 if it only took part
    global_batch: Count  # samples of everybody together
    data_s: float  # waiting for the loader
    compute_s: float  # forward, backward up to the last bucket, optimizer, everything else local
    exchange_s: float  # from the last bucket being ready until the exchange was over
    control_s: float  # part of compute_s and data_s spent on measuring and deciding
    ended_at_s: float  # Unix time
    transfer_s: float = 0.0  # part of exchange_s that its own side takes; what no link hides counts into its speed
    local_cpu_s: float = 0.0  # processor time of the process, all threads, in data_s and compute_s; 0 if unknown
    exchange_cpu_s: float = 0.0  # and in exchange_s
    others: float | None = None  # part of the node's processors that others took, as read right after the iteration
    memory: float | None = None  # part of the node's memory in use, as last read; both 0 … 1, None if unknown
    thread: Count = 0  # of this worker, which trained it
    threads: Several = 1  # of this worker side by side; seconds, and with several processor time, are this thread's
    passes: Several = 1  # forward and backward passes over its batch, where that is larger than what fits
    cost: Count | None = None  # of its samples, in those of a mean one, where batches are divided by it


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRecord:
    """A split of the global batch, as decided by every rank alike; written by rank 0."""

    kind: ClassVar[str] = "split"
    decided_at: Annotated[int, Range(-1)]  # iteration after which it was decided
    iteration: Count  # first iteration that uses it
    shares: tuple[Count, ...]
    speeds_per_s: tuple[float, ...]  # measured
    predicted_per_s: tuple[float, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRecord:
    """Use of the machine and of this process, sampled now and then."""

    kind: ClassVar[str] = "load"
    rank: Rank
    iteration: Count
    at_s: float  # Unix time
    machine_cpu: float  # 0 … 1, of all cores
    machine_memory: float  # 0 … 1
    process_cpu: float  # cores in use by this process
    process_memory_bytes: Count
    gpu: float | None = None  # 0 … 1
    gpu_memory_bytes: Count | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalarRecord:
    """A number that the user logged, for instance the loss."""

    kind: ClassVar[str] = "scalar"
    rank: Rank
    iteration: Count
    at_s: float  # Unix time
    name: str
    value: float
    weight: Annotated[float, Range(0.0)] = 1.0  # in the mean over all workers: what this one's batch counted


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRecord:
    """Something worth telling: a report that was not believed, a failure, the end of the run."""

    kind: ClassVar[str] = "event"
    rank: Rank
    iteration: Count
    at_s: float  # Unix time
    event: str  # "bad-report", "non-finite", "peer-lost", "end", …
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeRecord:
    """One exchange of parameters, as this worker saw it; gradients under the backward pass write none."""

    kind: ClassVar[str] = "exchange"
    rank: Rank
    iteration: Count  # the last one that it holds
    at_s: float  # Unix time of its end
    moment: str  # "step" or "background"
    members: Count  # how many took part
    samples: Count  # that this worker took since its last exchange
    gap: Count  # steps of this worker, all threads, since its last exchange: the sync gap times threads
    late: Count = 0  # steps that it took while the exchange was under way: how stale the outcome is
    took_s: float = 0.0
    sent_bytes: Count = 0  # by this worker, as counted from the shape of the exchange
    distance: float = 0.0  # root mean square of its parameters' distance from the mean, before
    picked: float = 1.0  # part of the entries that it sent, where some are picked; distance is that of the others then
    dropped: Count = 0  # exchanges not begun, as one was under way, since the last one; or 1: it came too late
    threads: Several = 1  # of this worker side by side


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipRecord:
    """Workers have come or gone, as a worker saw it that is there."""

    kind: ClassVar[str] = "membership"
    rank: Rank
    iteration: Count  # this worker's newest
    at_s: float  # Unix time
    generation: Count
    members: tuple[Rank, ...]
    came: tuple[Rank, ...] = ()
    left: tuple[Rank, ...] = ()
    border: Count = 0  # the first iteration that is split among these members
    pause_s: float = 0.0  # from when this worker knew of it until the new members had met
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineRecord:
    """What has passed on one line since its last record."""

    kind: ClassVar[str] = "line"
    rank: Rank
    iteration: Count
    at_s: float  # Unix time
    line: str
    exchanges: Count
    sent_bytes: Count  # by this worker, as counted from the shapes of the exchanges
    waited_s: float  # by the thread that called


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastRecord:
    """A worker's forecast of its own speed, as sent with a report; it holds until the next."""

    kind: ClassVar[str] = "forecast"
    rank: Rank
    iteration: Count  # the first that it is about
    predicted_per_s: float
    doubt: float  # relative standard error


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRecord:
    """What a worker measured of itself before the first iteration."""

    kind: ClassVar[str] = "profile"
    rank: Rank
    at_s: float  # Unix time
    sizes: tuple[Count, ...]  # samples, ascending
    seconds: Annotated[tuple[Annotated[float, Range(1e-9)], ...], Along("sizes")]  # of a step at each size
    saturation: Count  # samples, below which fewer gain nothing
    most: Count  # samples that it can be given at most
    failed: Count | None = None  # samples at which its memory did not suffice
    took_s: float = 0.0


Record = (
    RunRecord | ProfileRecord | StepRecord | SplitRecord | ForecastRecord | LoadRecord | ScalarRecord | EventRecord
    | ExchangeRecord | LineRecord | MembershipRecord
)  # fmt: skip

_KINDS: dict[str, type[Record]] = {
    cls.kind: cls
    for cls in (
        RunRecord,
        ProfileRecord,
        StepRecord,
        SplitRecord,
        ForecastRecord,
        LoadRecord,
        ScalarRecord,
        EventRecord,
        ExchangeRecord,
        LineRecord,
        MembershipRecord,
    )
}
_FIELDS = {cls: tuple(f.name for f in dataclasses.fields(cls)) for cls in _KINDS.values()}
_READERS: dict[str, Reader] = {kind: reader(cls) for kind, cls in _KINDS.items()}
_VALUES = {cls: attrgetter(*names) for cls, names in _FIELDS.items()}
_NOT_NUMBERS = ("str", "tuple", "dict")
# A record of nothing but numbers, of which one is written in every iteration, takes a third of the encoder's time so.
_TEMPLATES = {
    cls: "{" + "".join(f'"{name}":%s,' for name in names) + f'"kind":"{kind}"}}'
    for kind, cls in _KINDS.items()
    if (names := _FIELDS[cls]) and not any(str(f.type).startswith(_NOT_NUMBERS) for f in dataclasses.fields(cls))
}
# json.dumps would make an encoder per call
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def to_json(record: Record) -> str:
    """One line, without the line break. Non-finite floats are written as strings, as JSON has none."""
    cls = type(record)
    if (template := _TEMPLATES.get(cls)) is not None:
        line = template % _VALUES[cls](record)
        if "nan" not in line and "inf" not in line:
            return line.replace("None", "null")
    row: dict[str, Any] = dict(zip(_FIELDS[cls], _VALUES[cls](record), strict=True))
    row["kind"] = record.kind
    try:
        return _encode(row)
    except ValueError:  # it holds a NaN or an infinity; rare, so looking for them is not done on every step
        return _encode({name: _spelled(value) for name, value in row.items()})


def _spelled(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_spelled(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def from_json(line: str) -> Record:
    """Inverse of :func:`to_json`.

    Raises:
        JournalError: not JSON, an unknown kind, a field that is missing or of another type or range (it is named), or
            another schema.
    """
    try:
        row = json.loads(line)
        record: Record = _READERS[row["kind"]](row)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        why = f"unknown kind {error}" if isinstance(error, KeyError) else error
        raise JournalError(f"not a record of schema {SCHEMA}: {line[:120]!r} ({why})") from error
    if isinstance(record, RunRecord) and record.schema != SCHEMA:
        raise JournalError(
            f"run {record.run!r} was written with journal schema {record.schema}, this is {SCHEMA}: "
            f"read it with the version of uneven that wrote it ({record.versions.get('uneven', 'unknown')})"
        )
    return record
