"""A worker's client of the table servers: requests the pooled rows of a batch and sends their gradient.

Only reading an outcome blocks. The connection's thread carries messages, sends heartbeats, and resends lost messages.
Rows of a shard on this machine are read in place when they are needed, and a message only says where a gradient is.
"""

import json
import os
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from uneven.embedding.pure.dynamic_ids import Ids64
from uneven.embedding.pure.route import Routed
from uneven.embedding.pure.row_optimizers import Bags, Floats, Kernels
from uneven.embedding.pure.shard_tables import ShardSpec
from uneven.embedding.pure.table_conversation import TableLink
from uneven.embedding.pure.table_wire import READER, WIRES, Say, TableMessage
from uneven.embedding.shared_rows import SharedReader
from uneven.errors import CheckpointError, ConfigError, PeerError
from uneven.runtime.parameter_server.connection import ShardLine
from uneven.runtime.parameter_server.pure.wire import Refusal


class TableClient:
    """The requests of one worker to all shards. Thread-safe.

    It closes ``line`` with itself. ``timeout_s`` limits the wait for an outcome; ``share`` uses the memory that a shard
    on this machine offers. Rows are received as ``wire``. Gradients are sent as bfloat16 unless it is "float32".
    """

    def __init__(
        self,
        rank: int,
        shards: Sequence[ShardSpec],
        line: ShardLine,
        kernels: Kernels,
        *,
        timeout_s: float = 300.0,
        wire: str = WIRES[0],
        share: bool = True,
    ) -> None:
        if line.shards != len(shards):
            line.close()
            raise ConfigError(
                f"tables on {len(shards)} shards, but a connection to {line.shards}: give all the same --tables"
            )
        self.rank = rank
        self.pid = os.getpid()
        self.specs = tuple(shards)
        self._who = f"rank {rank}" if rank < READER else "a reader"
        self.timeout_s = timeout_s
        self.wire = wire
        self.kernels = kernels
        self.line = line
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        self._links = {
            shard: TableLink(rank, spec.text, spec.fingerprint) for shard, spec in enumerate(shards) if spec.groups
        }
        self._share = share
        self._readers: dict[int, SharedReader] = {}
        self._answers: dict[tuple[int, int], TableMessage | None] = {}
        self._meetings = 0
        line.open(self)  # last: its thread calls back from now on

    def ask(self, routed: Routed, *, learning: bool = True) -> "AskedRows":
        """Request the pooled rows of a batch; with ``learning``, the lookup counts as a sighting of its ids."""
        kind, due, asked = Say.LOOKUP if learning else Say.READ, {}, {}
        with self._changed:
            for shard in routed.blocks:
                bags = routed.bags(shard)
                reader = self._readers.get(shard) if learning else None  # a gradient reports the lookup
                if reader is not None and any(reader.reads(one) for one in bags):
                    due[shard] = OwnUpdates(reader, self._links[shard].sequence)
                    bags = tuple(one for one in bags if not reader.reads(one))
                if bags:
                    asked[shard] = self._request(shard, kind, bags, wire=self.wire)
        return AskedRows(self, routed, asked, due)

    def read(self, shard: int, own: "OwnUpdates", bags: tuple[Bags, ...], lookups: int) -> "int | RowsInPlace":
        """Return the sums of bags that are read in place. If an own update is not in them, send a request instead,
        whose answer waits for it, and return its number. ``lookups``: 1 if the shard counts none for this batch."""
        with self._changed:
            if self._readers.get(shard) is not own.reader or own.reader.sequence < own.sequence:
                return self._request(shard, Say.LOOKUP, bags, wire=self.wire)
            own.reader.count(bags, lookups)
        version = own.reader.version  # before the rows, so that it is not too high
        return RowsInPlace(version, [own.reader.lookup(one) for one in bags])

    def give(self, asked: "AskedRows", gradient: Floats) -> None:
        """Send the gradient of a batch's numbers, shape (batch, width); each shard steps on its rows immediately."""
        routed, gradient = asked.routed, asked.routed.divided(gradient)  # once, not per shard
        for shard, blocks in routed.blocks.items():
            values: list[Any] = list(routed.gradients(shard, gradient))
            bags = tuple(replace(block.bags, values=one) for block, one in zip(blocks, values, strict=True))
            with self._changed:
                reader = self._readers.get(shard)
                place = None
                if reader is not None:
                    self._links[shard].note(done := reader.sequence)
                    place = reader.reserve(bags, done)
            if reader is not None and place is not None:
                bags = reader.put(bags, place)
            else:  # kept until it has arrived, while torch may use the gradient's memory again
                whole = self.wire == WIRES[0]
                kept: Callable[[Any], Any] = np.array if whole else partial(self.kernels.narrowed, dtype="bfloat16")
                bags = tuple(replace(one, values=kept(one.values)) for one in bags)
            self._post(shard, Say.GRADIENT, bags, asked.versions[shard], reader, place)

    def write(self, shard: int, bags: Bags) -> None:
        """Set rows, and their Adagrad sums to ``bags.weights``; without weights, reset the sums."""
        self._post(shard, Say.WRITE, (bags,), 0)

    def rows(self, shard: int, bags: Bags, kind: Say = Say.READ) -> Floats:
        """Return current rows, shape (bags, width); with ``Say.SUMS`` their Adagrad sums, shape (bags, 1)."""
        with self._changed:
            numbers = {shard: self._request(shard, kind, (bags,))}
        values = self.outcome(numbers, "a lookup")[shard].bags[0].values
        assert values is not None
        return values

    def names(self, shard: int, group: int) -> Ids64:
        """Return the ids (n,) int64 that have rows in a growing group."""
        with self._changed:
            numbers = {shard: self._request(shard, Say.NAMES, text=str(group))}
        ids = self.outcome(numbers, "a request for ids")[shard].bags[0].ids
        assert ids is not None
        return ids.astype(np.int64)

    def flush(self) -> None:
        """Wait until earlier updates of all present workers are applied; each must call this."""
        with self._changed:
            self._meetings += 1  # shards match the flushes of different workers by this number
            numbers = {shard: self._request(shard, Say.FLUSH, meeting=self._meetings) for shard in self._links}
        self.outcome(numbers, "a flush of all workers")

    def do(self, kind: Say, text: str) -> None:
        """Make all shards save or load; raise :class:`CheckpointError` with the reason if one fails."""
        with self._changed:
            save = secrets.randbits(31)  # distinguishes the marks of different saves in one folder
            numbers = {shard: self._request(shard, kind, text=text, meeting=save) for shard in self._links}
        for shard, answer in self.outcome(numbers, f"{kind.name.lower()} {text}").items():
            if answer.text:
                raise CheckpointError(f"shard {shard} of the tables cannot {kind.name.lower()} {text}: {answer.text}")

    def stats(self) -> "TableStats":
        found = self._told().values()
        counts: Counter[str] = Counter()
        staleness: Counter[int] = Counter()
        for one in found:
            counts.update(one["counts"])
            staleness.update({int(key): many for key, many in one["staleness"].items()})
        for reader in list(self._readers.values()):
            counts.update(lookups=reader.lookups, rows=reader.read)  # the next gradient reports them
        return TableStats(counts, staleness, self.lost, self.restarts)

    def updates(self) -> int:
        """Return the updates of all workers that the shards have applied."""
        return max(int(one["version"]) for one in self._told().values())

    def speeds(self) -> list[float]:
        """Return each shard's speed in row numbers per µs; an idle shard gets the mean of the others."""
        counts = [one["counts"] for one in self._told().values()]
        found = [one.get("numbers", 0) / max(one.get("busy_us", 0), 1) for one in counts]
        there = [one for one in found if one > 0] or [1.0]
        return [one or sum(there) / len(there) for one in found]

    def _told(self) -> dict[int, Any]:
        with self._changed:
            numbers = {shard: self._request(shard, Say.STATS) for shard in self._links}
        answers = self.outcome(numbers, "a request for counts")
        return {shard: json.loads(answers[shard].text) for shard in sorted(answers)}

    @property
    def lost(self) -> int:
        return sum(link.lost for link in self._links.values())

    @property
    def restarts(self) -> int:
        return sum(link.restarts for link in self._links.values())

    def leave(self) -> None:
        """Announce that flushes need not wait for this worker until its next request."""
        with self._changed:
            for shard, link in self._links.items():
                if link.life:
                    self.line.post(shard, [link.leave()])

    def close(self) -> None:
        self.leave()  # so that no flush waits for this worker
        self.line.close()
        self._readers.clear()

    # ---------------------------------------------------------------- called by the connection's thread
    def received(self, shard: int, message: TableMessage) -> None:
        with self._changed:
            if shard not in self._links:
                return
            if message.kind is Say.WELCOME and self._share and self.rank < READER:
                self._meet(shard, message)
            out, answers = self._links[shard].receive(message)
            self.line.post(shard, out)
            for number, answer in answers:
                if (shard, number) in self._answers:
                    self._answers[shard, number] = answer
            if answers:
                self._changed.notify_all()

    def beat(self, shard: int) -> None:
        with self._changed:
            if shard in self._links:
                self.line.post(shard, [self._links[shard].beat()])

    def broken(self, error: BaseException) -> None:
        with self._changed:
            self._error = error
            self._changed.notify_all()

    # ---------------------------------------------------------------- called by the requesting threads
    def outcome(self, numbers: dict[int, int], what: str) -> dict[int, TableMessage]:
        """Wait for the answers of all shards; raise :class:`PeerError` if one is missing or rejects the request."""
        keys = list(numbers.items())
        with self._changed:
            self._wait(lambda: all(self._answers[key] is not None for key in keys), keys, what)
            found = {key[0]: self._answers.pop(key) for key in keys}
        for shard, answer in found.items():
            assert answer is not None
            if answer.kind is Say.REFUSED:
                known = answer.text in {one.value for one in Refusal}
                hint = ": do all workers have the same tables, and the same version of uneven?" if known else ""
                raise PeerError(
                    f"{self._who}: shard {shard} of the tables at {self.line.where(shard)} rejected {what} "
                    f"({answer.text}){hint}"
                )
        return {shard: answer for shard, answer in found.items() if answer is not None}

    def _wait(self, done: Callable[[], bool], keys: list[tuple[int, int]], what: str) -> None:
        if not self._changed.wait_for(lambda: done() or self._error is not None, self.timeout_s):
            missing = [shard for shard, number in keys if self._answers.get((shard, number)) is None]
            names = ", ".join(f"shard {shard} ({self.line.where(shard)})" for shard in missing)
            self.drop(dict(keys))  # a late answer would otherwise stay in `_answers`
            raise PeerError(f"{self._who}: no answer to {what} within {self.timeout_s:g} s from {names} of the tables")
        if self._error is not None and not done():
            raise PeerError(f"{self._who}: the line to the tables has ended: {self._error}") from self._error

    def drop(self, numbers: dict[int, int]) -> None:
        with self._changed:
            for shard, number in numbers.items():
                self._answers.pop((shard, number), None)
                self._links[shard].forget(number)

    def _meet(self, shard: int, m: TableMessage) -> None:
        known = self._readers.get(shard)
        if known is None or known.life != m.life:
            self._readers.pop(shard, None)
            if (found := SharedReader.of(m.text, m.life, self.rank, self.specs[shard])) is not None:
                self._readers[shard] = found

    def _request(self, shard: int, kind: Say, bags: tuple[Bags, ...] = (), **more: Any) -> int:
        """Post a request; return its number."""
        with self._changed:
            number, out = self._links[shard].request(kind, bags, **more)
            self._answers[shard, number] = None
            self.line.post(shard, out)
            return number

    def _post(
        self,
        shard: int,
        kind: Say,
        bags: tuple[Bags, ...],
        version: int,
        reader: SharedReader | None = None,
        place: int | None = None,
    ) -> None:
        with self._changed:
            if self._error is not None:
                raise PeerError(f"{self._who}: the line to the tables has ended: {self._error}") from self._error
            link = self._links[shard]
            current = self._readers.get(shard)
            if reader is not None and place is not None and reader is current and reader.life == link.life:
                out = link.change(kind, bags, version, place=place, **reader.counted())
                if reader.post(*out):
                    return
            else:  # also if the shard has restarted meanwhile
                out = link.change(kind, bags, version)
            if current is not None:
                current.sent = link.sequence
            self.line.post(shard, out)


class OwnUpdates(NamedTuple):
    """The last update that a worker had sent to a shard when it asked, and the memory that shows its arrival."""

    reader: SharedReader
    sequence: int


class RowsInPlace(NamedTuple):
    """The sums of bags in the shard's memory, and the updates of all workers that they have at least."""

    version: int
    rows: list[Floats]


class AskedRows:
    """The pending lookup of a batch: requests, and rows to be read in place when they are needed."""

    def __init__(
        self, client: TableClient, routed: Routed, numbers: dict[int, int], due: dict[int, OwnUpdates]
    ) -> None:
        self.routed = routed
        self.versions: dict[int, int] = {}  # of the rows on each shard, at the lookup
        self._client = client
        self._numbers = numbers
        self._due = due

    def values(self) -> Floats:
        """Wait for the rows, shape (batch, width) float32; raise :class:`PeerError` without an answer. Call it once."""
        here: dict[int, list[Floats]] = {}
        late: dict[int, int] = {}
        for shard, own in self._due.items():
            bags = tuple(one for one in self.routed.bags(shard) if own.reader.reads(one))
            found = self._client.read(shard, own, bags, int(shard not in self._numbers))
            if isinstance(found, int):
                late[shard] = found
            else:
                self.versions[shard], here[shard] = found
        asked = self._answered(self._numbers)
        here |= self._answered(late)
        rows = {}
        for shard in self.routed.blocks:
            own_, mine, others = self._due.get(shard), iter(here.get(shard, ())), iter(asked.get(shard, ()))
            rows[shard] = [
                next(mine if own_ is not None and own_.reader.reads(one) else others) for one in self.routed.bags(shard)
            ]
        return self.routed.pooled(rows)

    def _answered(self, numbers: dict[int, int]) -> dict[int, list[Floats]]:
        answers = self._client.outcome(numbers, "a lookup") if numbers else {}
        for shard, answer in answers.items():
            self.versions.setdefault(shard, answer.version)
        return {shard: [self._floats(one) for one in answer.bags] for shard, answer in answers.items()}

    def _floats(self, bags: Bags) -> Floats:
        assert bags.values is not None  # wire.decode has checked
        return self._client.kernels.whole(bags.values)

    def drop(self) -> None:
        self._client.drop(self._numbers)


@dataclass(frozen=True, slots=True)
class TableStats:
    """The counts of all shards, and of this worker's updates."""

    counts: Counter[str]  # see :class:`uneven.embedding.pure.table_shard.TableShard`
    staleness: Counter[int]  # updates between a lookup and its gradient → number of lookups
    lost: int  # this worker's updates that a shard applied and then lost in a restart
    restarts: int  # observed restarts of shards
    sharing: dict[str, float] = field(default_factory=dict)  # average ids per row of each table with ``modulo``

    def stale(self, part: float) -> float:
        """Return the ``part`` quantile (0 to 1) of the staleness; NaN without lookups."""
        total, seen = sum(self.staleness.values()), 0
        for value, many in sorted(self.staleness.items()):
            seen += many
            if seen >= part * total:
                return value
        return float("nan")
