"""Read-only look-ups: from the shards of a running training, which do not wait for the reader, or from saved rows."""

import secrets
import threading
import time
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from uneven.embedding.kernels import TorchKernels
from uneven.embedding.pure import table_wire
from uneven.embedding.pure.lookup_request import MOST_NUMBERS, LookupAnswer, together
from uneven.embedding.pure.route import BatchIds, Router
from uneven.embedding.pure.shard_tables import ShardSpec, whole_tables
from uneven.embedding.pure.sharding_plan import place
from uneven.embedding.pure.table_wire import READER, Say, TableMessage
from uneven.embedding.table_client import TableClient
from uneven.embedding.table_files import newest_saves
from uneven.embedding.table_host import TABLES, TableHost
from uneven.errors import CheckpointError, DataError, PeerError, UnevenError
from uneven.runtime.messages.keys import address, make_keys, shards_in
from uneven.runtime.parameter_server import ZmqLine
from uneven.runtime.temp_dir import SHARD_FOLDER, TemporaryFolder

_ANSWER_S = 5.0  # longest wait of a look-up
_WELCOME_S = 1.0  # for all shards, before their addresses are read again
_MOST_WAITING = 1024  # requests


def training_tables(run: Path, within_s: float) -> TableClient | None:
    """Return a reader of a running training; None if its servers have ended, or have no tables within that time."""
    directory, limit_s = run / TABLES, time.monotonic() + within_s
    while (count := shards_in(directory)) and time.monotonic() < limit_s:
        found = [address(directory, shard) for shard in range(count)]
        if all(one is not None and one.local is not None and not psutil.pid_exists(one.pid) for one in found):
            break  # their processes were on this machine, and have ended
        with closing(ZmqLine(directory, count, beat_s=0.1, codec=table_wire)) as asking:
            greeting = _Greeting(asking)
            asking.open(greeting)
            greeting.over.wait(_WELCOME_S)
            if greeting.error is not None:
                raise PeerError(f"cannot ask the table servers of {run}: {greeting.error}") from greeting.error
            if specs := whole_tables(greeting.found):
                line = ZmqLine(directory, len(specs), codec=table_wire)
                rank = READER | secrets.randbits(31)  # so that readers do not take each other's answers
                return TableClient(rank, specs, line, TorchKernels(), timeout_s=_ANSWER_S)
    return None


def saved_tables(folder: Path, stack: ExitStack) -> tuple[TableClient, int]:
    """Load a folder of ``save_checkpoint()``, or the automatic saves in a run directory; return also their updates.

    A shard in a thread holds them until ``stack`` is closed.

    Raises:
        CheckpointError: it has no saved tables, or rows are missing.
    """
    where = folder if any(folder.glob("shard-*.json")) else folder / TABLES / "saved"
    if not (saves := newest_saves(where)):
        raise CheckpointError(
            f"{folder} has no training with table servers that answer (uneven run --tables), and no saved tables: "
            "name a run directory, or a folder of tables.save_checkpoint()"
        )
    _, said = max(saves.values(), key=lambda one: one[1]["version"])
    spec = ShardSpec.read(said["tables"]).tables
    here = [one if Path(one.path or ".").is_dir() else replace(one, path=None) for one in spec.tables]
    tables = replace(spec, tables=tuple(here), save_every_s=None)
    made = TemporaryFolder(SHARD_FOLDER)
    stack.callback(made.remove)
    make_keys(made.path)
    stack.enter_context(TableHost(made.path, 0, 1))
    specs = [ShardSpec(tables, place(tables.tables, 1)[0])]
    client = TableClient(0, specs, ZmqLine(made.path, 1, codec=table_wire), TorchKernels())
    stack.callback(client.close)
    client.do(Say.LOAD, str(where))
    client.timeout_s = _ANSWER_S
    return client, said["version"]


class _Greeting:
    """Asks shards for their specifications."""

    def __init__(self, line: ZmqLine) -> None:
        self.found: dict[int, ShardSpec] = {}
        self.error: Exception | None = None
        self.over = threading.Event()
        self._line = line

    def received(self, shard: int, message: TableMessage) -> None:
        if message.kind is Say.WELCOME:
            self.found[shard] = ShardSpec.read(message.text)
            if whole_tables(self.found):
                self.over.set()

    def beat(self, shard: int) -> None:
        self._line.post(shard, [TableMessage(kind=Say.OPEN, rank=READER)])

    def broken(self, error: Exception) -> None:
        self.error = error
        self.over.set()


@dataclass(slots=True)
class _WaitingLookup:
    ids: BatchIds
    answer: LookupAnswer | UnevenError | None = None


class Lookups:
    """Answers requests of several threads. Those that come while others are answered are looked up together."""

    busy = False

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()  # requests, rejected, failed, ids, batches, busy_us
        self._queue: deque[_WaitingLookup] = deque()
        self._turn = threading.Lock()

    def use(self, tables: TableClient, saved: int | None = None) -> None:
        """Answer from ``tables``; ``saved`` are the updates in them if they are saved ones."""
        with self._turn:
            self.tables, self.saved, self.spec = tables, saved, tables.specs[0].tables
            self.router = Router(self.spec, tables.specs)

    def updates(self) -> int:
        """Return the updates in the rows, after a question to each server; raise :class:`PeerError`."""
        return self.tables.updates() if self.saved is None else self.saved

    def take(self, frames: Sequence[Any], now_s: float) -> tuple[None, Sequence[Any]]:
        return None, ()  # `LookupSockets` takes all messages that wait

    def tick(self, now_s: float) -> Sequence[Any]:
        return ()

    def answers(self, asked: Sequence[BatchIds]) -> list[LookupAnswer | UnevenError]:
        """Return the rows of each request, or the reason why it has none."""
        if len(self._queue) + len(asked) > _MOST_WAITING:
            return [PeerError(f"over {_MOST_WAITING} requests are waiting: ask again later")] * len(asked)
        mine = [_WaitingLookup(one) for one in asked]
        self._queue.extend(mine)
        with self._turn:
            while any(one.answer is None for one in mine):
                began_s = time.perf_counter()
                self._look_up(self._next())
                self.counts["busy_us"] += round(1e6 * (time.perf_counter() - began_s))
        return [one.answer for one in mine if one.answer is not None]

    def _next(self) -> list[_WaitingLookup]:
        taken, left = [self._queue.popleft()], MOST_NUMBERS // self.router.width
        while self._queue and (left := left - taken[-1].ids.batch) >= self._queue[0].ids.batch:
            taken.append(self._queue.popleft())
        return taken

    def _look_up(self, waiting: list[_WaitingLookup]) -> None:
        try:
            routed = self.router.route(together([one.ids for one in waiting]))
        except DataError:  # an unknown id must not fail the other requests
            if known := [one for one in waiting if self._knows(one)]:
                self._look_up(known)
            return
        try:
            asked = self.tables.ask(routed, learning=False)
            rows = asked.values()
        except PeerError as error:
            self.counts["failed"] += len(waiting)
            for one in waiting:
                one.answer = error
            return
        updates = max(asked.versions.values(), default=0) if self.saved is None else self.saved
        for one in waiting:
            mine, rows = rows[: one.ids.batch], rows[one.ids.batch :]
            one.answer = LookupAnswer(mine, updates, self.router.columns)
        self.counts.update(requests=len(waiting), batches=1, ids=len(routed.ids.values))

    def _knows(self, one: _WaitingLookup) -> bool:
        try:
            self.router.rows_of(one.ids)
        except DataError as error:
            self.counts["rejected"] += 1
            one.answer = error
        return one.answer is None
