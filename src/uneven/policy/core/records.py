"""The records of the journal, one JSON line each.

``to_json`` and ``from_json`` are exact inverses. Reading raises an error for an unknown kind, a missing field, or a
value outside its annotated type or range. It ignores unknown fields, so older code reads newer journals of one schema.
"""

import dataclasses
import json
import math
import re
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Annotated, Any, ClassVar, get_args

from uneven.errors import JournalError
from uneven.policy.core.plain import Along, Count, Range, Reader, reader

SCHEMA = 1  # the version of the journal, raised when a field changes its meaning or disappears
SHARE = "share"  # the key, among the settings of a run record, of the cores that the launcher limited this worker to
Rank = Annotated[int, Range(0, 2**20)]  # a rank; it is bounded because readers make lists as long as the greatest rank
Several = Annotated[int, Range(1, 2**20)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """The first record of every rank's journal: the description of the run."""

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

    ``exchange_s`` is the part of the exchange that the backward pass did not hide. One worker cannot separate waiting
    from communication. The worker that arrived last waited for no other, so ``journal.pure.metrics`` takes the least
    ``exchange_s`` of an iteration as communication time, and the rest of each worker's as its wait.
    """

    kind: ClassVar[str] = "step"
    rank: Rank
    iteration: Count  # counted over the whole run, from 0
    epoch: Count
    batch: Count  # samples of this worker that count; 0 if it only took part in the exchange
    global_batch: Count  # samples of all workers
    data_s: float  # waiting for the loader
    compute_s: float  # forward, backward until the last bucket is ready, optimizer, all other local work
    exchange_s: float  # from the last bucket being ready to the end of the exchange
    control_s: float  # part of compute_s and data_s spent on measuring and deciding
    ended_at_s: float  # Unix time
    transfer_s: float = 0.0  # part of exchange_s for its own side; the part that no link hides counts in its speed
    local_cpu_s: float = 0.0  # processor time of the process, all threads, in data_s and compute_s; 0 if unknown
    exchange_cpu_s: float = 0.0  # the same in exchange_s
    others: float | None = None  # part of the node's processors that others used, read right after the iteration
    memory: float | None = None  # part of the node's memory in use, as last read; both 0 … 1, None if unknown
    thread: Count = 0  # number of this worker's thread that trained it
    threads: Several = 1  # parallel threads of this worker; seconds, and if several processor time, are this thread's
    passes: Several = 1  # forward and backward passes over its batch, if the batch does not fit in memory
    cost: Count | None = None  # of its samples, in units of a mean sample, if batches are split by cost


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRecord:
    """A split of the global batch, decided identically on every rank; rank 0 writes it."""

    kind: ClassVar[str] = "split"
    decided_at: Annotated[int, Range(-1)]  # iteration after which it was decided
    iteration: Count  # first iteration that uses it
    shares: tuple[Count, ...]
    speeds_per_s: tuple[float, ...]  # measured
    predicted_per_s: tuple[float, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRecord:
    """A sample of the use of the machine and of this process."""

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
    weight: Annotated[float, Range(0.0)] = 1.0  # in the mean over all workers: the weight of this worker's batch


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRecord:
    """A notable event: a rejected report, a failure, the end of the run."""

    kind: ClassVar[str] = "event"
    rank: Rank
    iteration: Count
    at_s: float  # Unix time
    event: str  # "bad-report", "non-finite", "peer-lost", "end", …
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeRecord:
    """One exchange of parameters, as seen by this worker; gradient exchanges in the backward pass write none."""

    kind: ClassVar[str] = "exchange"
    rank: Rank
    iteration: Count  # the last iteration that it includes
    at_s: float  # Unix time of its end
    moment: str  # "step" or "background"
    members: Count  # number that took part
    samples: Count  # taken by this worker since its last exchange
    gap: Count  # steps of this worker, all threads, since its last exchange: the sync gap times threads
    late: Count = 0  # steps taken while the exchange was in flight: the staleness of the outcome
    took_s: float = 0.0
    sent_bytes: Count = 0  # by this worker, computed from the shape of the exchange
    distance: float = 0.0  # root mean square distance of its parameters from the mean, before
    picked: float = 1.0  # part of the entries that it sent; if below 1, distance is that of the other entries
    dropped: Count = 0  # exchanges skipped since the last one because one was in flight; or 1: this one came too late
    threads: Several = 1  # parallel threads of this worker


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipRecord:
    """A change of membership, as seen by one of the remaining workers."""

    kind: ClassVar[str] = "membership"
    rank: Rank
    iteration: Count  # this worker's newest
    at_s: float  # Unix time
    generation: Count
    members: tuple[Rank, ...]
    came: tuple[Rank, ...] = ()
    left: tuple[Rank, ...] = ()
    border: Count = 0  # the first iteration that is split among these members
    pause_s: float = 0.0  # from this worker's notice of the change until the new members have met
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineRecord:
    """The traffic of one connection since its last record."""

    kind: ClassVar[str] = "line"
    rank: Rank
    iteration: Count
    at_s: float  # Unix time
    line: str
    exchanges: Count
    sent_bytes: Count  # by this worker, as counted from the shapes of the exchanges
    waited_s: float  # by the calling thread


@dataclass(frozen=True, slots=True, kw_only=True)
class MeetingsRecord:
    """The collective operations of one step, in order; written if there were several.

    The worker that arrives last at a meeting waits least. So the least wait of all workers at a meeting is
    communication. The least ``exchange_s`` of a step with several meetings is not.
    """

    kind: ClassVar[str] = "meetings"
    rank: Rank
    iteration: Count
    seconds: tuple[float, ...]  # that this worker waited at each


@dataclass(frozen=True, slots=True, kw_only=True)
class FactsRecord:
    """What ``uneven why`` has read about a worker and its machine since its last record of this kind."""

    kind: ClassVar[str] = "facts"
    rank: Rank
    iteration: Count
    at_s: float  # Unix time
    values: dict[str, float]  # see ``why.facts``; a source that the system lacks is missing
    others: str = ""  # name and process number of the busiest other process, if this worker lacked a processor
    link: str = ""  # of the busiest connection: this worker's address and its peer's, with a space between
    where: str = ""  # where the training thread is, if no step ended for ``still_s``; the record has no sums then


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastRecord:
    """A worker's forecast of its speed, sent with a report; it holds until the next."""

    kind: ClassVar[str] = "forecast"
    rank: Rank
    iteration: Count  # the first iteration that it applies to
    predicted_per_s: float
    doubt: float  # relative standard error


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRecord:
    """A worker's measurement of itself before the first iteration."""

    kind: ClassVar[str] = "profile"
    rank: Rank
    at_s: float  # Unix time
    sizes: tuple[Count, ...]  # samples, ascending
    seconds: Annotated[tuple[Annotated[float, Range(1e-9)], ...], Along("sizes")]  # of a step at each size
    saturation: Count  # samples; smaller batches take the same time
    most: Count  # samples; the largest batch that it can take
    failed: Count | None = None  # samples at which memory did not suffice
    took_s: float = 0.0


Record = (
    RunRecord
    | ProfileRecord
    | StepRecord
    | SplitRecord
    | ForecastRecord
    | LoadRecord
    | ScalarRecord
    | EventRecord
    | ExchangeRecord
    | LineRecord
    | MembershipRecord
    | MeetingsRecord
    | FactsRecord
)

_KINDS: dict[str, type[Record]] = {cls.kind: cls for cls in get_args(Record)}
_FIELDS = {cls: tuple(f.name for f in dataclasses.fields(cls)) for cls in _KINDS.values()}
_READERS: dict[str, Reader] = {kind: reader(cls) for kind, cls in _KINDS.items()}
_VALUES = {cls: attrgetter(*names) for cls, names in _FIELDS.items()}
_NOT_NUMBERS = re.compile(r"\b(str|tuple|dict)\b")
# Each iteration writes a record that holds only numbers. A template takes a third of the encoder's time.
_TEMPLATES = {
    cls: "{" + "".join(f'"{name}":%s,' for name in names) + f'"kind":"{kind}"}}'
    for kind, cls in _KINDS.items()
    if (names := _FIELDS[cls]) and not any(_NOT_NUMBERS.search(str(f.type)) for f in dataclasses.fields(cls))
}
# json.dumps would make an encoder per call.
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def is_known(kind: str) -> bool:
    """Return whether this version reads records of a kind."""
    return kind in _KINDS


def to_json(record: Record) -> str:
    """Return the record as one line, without line break. Non-finite floats, unknown to JSON, become strings."""
    cls = type(record)
    if (template := _TEMPLATES.get(cls)) is not None:
        line = template % _VALUES[cls](record)
        if "nan" not in line and "inf" not in line:
            return line.replace("None", "null")
    row: dict[str, Any] = dict(zip(_FIELDS[cls], _VALUES[cls](record), strict=True))
    row["kind"] = record.kind
    try:
        return _encode(row)
    except ValueError:  # it holds a NaN or an infinity; rare, so steps do not check for them in advance
        return _encode({name: _spelled(value) for name, value in row.items()})


def _spelled(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_spelled(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def from_json(line: str) -> Record:
    """Return the inverse of :func:`to_json`. Raises JournalError for an unknown kind, another schema, invalid JSON, or
    a field that is missing or out of range."""
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
