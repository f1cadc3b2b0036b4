"""Shards of tables without sockets: every message is encoded, may be lost, and is answered at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from uneven.embedding.kernels import TorchKernels
from uneven.embedding.pure.config import RowwiseAdagrad, Table, TableSpec
from uneven.embedding.pure.route import BatchIds, Router
from uneven.embedding.pure.shard_tables import ShardSpec
from uneven.embedding.pure.sharding_plan import place
from uneven.embedding.pure.table_shard import TableShard
from uneven.embedding.pure.table_wire import TableMessage, decode, encode
from uneven.embedding.shared_rows import SharedShard
from uneven.embedding.table_client import TableClient
from uneven.embedding.table_files import TableFiles
from uneven.runtime.parameter_server.pure.roster import Patience

_TWO = (Table(50, 4, "a"), Table(90, 4, "b"))
TABLES = TableSpec(_TWO, RowwiseAdagrad(lr=0.1), 0, save_every_s=100.0)
PATIENCE = Patience(join_s=5.0, silence_s=5.0)


class MemoryShards:
    """Some shards, and a clock that stands unless it is moved."""

    def __init__(self, count: int, members: int = 1, folder: Path | None = None, *, share: bool = False) -> None:
        self.members = members
        self._share = share
        self._folder = folder
        self.now_s = 0.0
        self.shards = [self._new(number, number + 1) for number in range(count)]
        self.specs = tuple(ShardSpec(TABLES, ranges) for ranges in place(TABLES.tables, count))
        self.router = Router(TABLES, self.specs)
        self.ears: dict[int, TableClient] = {}
        self.loses: Callable[[TableMessage], bool] = lambda message: False

    def _new(self, number: int, life: int) -> TableShard:
        shared = SharedShard(life, self.members) if self._share else None
        files = TableFiles(self._folder, number)
        return TableShard(life, self.members, TorchKernels(), files, PATIENCE, shared=shared)

    def restart(self, shard: int) -> None:
        """Kill a shard; the next one knows what it has saved in the folder."""
        self.shards[shard] = self._new(shard, self.shards[shard].life + 100)

    def client(self, rank: int = 0) -> TableClient:
        made = TableClient(rank, self.specs, MemoryLine(self, rank), TorchKernels(), timeout_s=0.01)
        self.beat(rank)
        return made

    def beat(self, rank: int = 0) -> None:
        for shard in range(len(self.shards)):
            self.ears[rank].beat(shard)

    def take_posts(self, shard: int) -> None:
        """Take what workers have posted in shared memory, unless it is lost."""
        one = self.shards[shard]
        for frames in [] if one.shared is None else one.shared.taken():
            if not self.loses(decode(frames, one.shared.region)):
                self.answer(one.take(frames, self.now_s)[1], shard)

    def hand(self, shard: int, message: TableMessage) -> None:
        self.take_posts(shard)
        if not self.loses(message):
            self.answer(self.shards[shard].take(encode(message), self.now_s)[1], shard)

    def tick(self) -> None:
        for shard, one in enumerate(self.shards):
            self.answer(one.tick(self.now_s), shard)

    def answer(self, messages: Sequence[TableMessage], shard: int) -> None:
        for message in messages:
            if message.rank in self.ears and not self.loses(message):
                self.ears[message.rank].received(shard, message)

    def features(self, ids: Sequence[int]) -> BatchIds:
        """One id for each of the two features, the same."""
        return BatchIds(np.repeat(np.array(ids, np.int64), 2), len(ids), 2)


class MemoryLine:
    """A worker's line to them."""

    def __init__(self, to: MemoryShards, rank: int) -> None:
        self.shards, self._to, self._rank = len(to.shards), to, rank

    def open(self, ear: Any) -> None:
        self._to.ears[self._rank] = ear

    def post(self, shard: int, messages: Sequence[Any]) -> None:
        for message in messages:
            self._to.hand(shard, message)

    def where(self, shard: int) -> str:
        return f"memory {shard}"

    def close(self) -> None:
        self._to.ears.pop(self._rank, None)
