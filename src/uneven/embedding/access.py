"""One worker's access to the tables: the servers of its run, or shard threads in a single-process run."""

import math
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from uneven.embedding.ids import BatchReader
from uneven.embedding.kernels import TorchKernels
from uneven.embedding.pure import table_wire
from uneven.embedding.pure.config import TableSpec
from uneven.embedding.pure.route import BatchIds, Router
from uneven.embedding.pure.row_optimizers import Floats
from uneven.embedding.pure.shard_tables import ShardSpec
from uneven.embedding.pure.sharding_plan import MeasuredTables, place
from uneven.embedding.table_client import AskedRows, TableClient, TableStats
from uneven.embedding.table_host import TABLES, TableHost
from uneven.errors import ConfigError
from uneven.runtime.at_exit import ends_with_the_program
from uneven.runtime.messages.keys import shards_in
from uneven.runtime.parameter_server import ZmqLine, make_keys
from uneven.runtime.temp_dir import SHARD_FOLDER, TemporaryFolder
from uneven.runtime.world import World, discover

_MOST_AHEAD = 64  # prefetched, unused batches; older ones are dropped
LOOK_S, STILL_S = 0.02, 10.0  # [default]: between two looks at the updates, and of the longest wait without one


class _Ahead(NamedTuple):
    given: Any  # the ids, as the script passed them
    changes: Any  # result of :func:`_changes` when they were read
    read: BatchIds
    asked: AskedRows


class TableAccess:
    """A lazily opened client of the tables, with prefetching. All copies of a model in this process share it.

    ``shards`` is the number of shard threads in a single-process run; ``measured`` comes from an earlier run.
    """

    def __init__(
        self,
        spec: TableSpec,
        *,
        shards: int = 1,
        wire: str = table_wire.WIRES[0],
        measured: MeasuredTables | None = None,
        unpooled: bool = False,
        stagger: int = 0,
    ) -> None:
        self.spec = spec
        self.reader = BatchReader(spec, unpooled=unpooled)
        self.timeout_s = 300.0
        self.share = True  # use the memory that shards on this machine offer
        self.scale: Callable[[], float] = lambda: 1.0
        self._alone = shards
        self._wire = wire
        self._stagger = stagger  # 0 once this worker has started
        self._by = measured or MeasuredTables()
        self._opening = threading.Lock()
        self._client: TableClient | None = None
        self._ahead: deque[_Ahead] = deque()
        self._hosts: list[TableHost] = []
        self._closing: Callable[[], object] = lambda: None
        self._ended = False

    @property
    def client(self) -> TableClient:
        """The client; the first access connects it. Raises :class:`ConfigError` if workers have no servers, and in a
        process that was forked later: both would write into the same shared memory."""
        with self._opening:
            found = self._client or self._open()
        if os.getpid() != found.pid:
            raise ConfigError(
                f"process {os.getpid()} was forked from process {found.pid}, whose tables were open: use the tables in "
                "that process alone"
            )
        return found

    def ask(self, ids: Any, *, learning: bool) -> AskedRows:
        """Request a batch's rows, or return the request that :meth:`ahead` made for the same ids."""
        self._take_turn(learning)
        # Identity first: comparing ids of a large batch costs more than the look at its version counter.
        if (found := self._asked(lambda one: one.given is ids and one.changes == _changes(ids))) is not None:
            return found
        read = self.reader.read(ids)
        found = self._asked(lambda one: one.read.same(read))
        return found or self.client.ask(self.router.route(read), learning=learning)

    def measured(self) -> MeasuredTables:
        return MeasuredTables(self.router.lookups(), tuple(self.client.speeds()))

    def stats(self) -> TableStats:
        return replace(self.client.stats(), sharing=self.router.sharing())

    def _asked(self, are_these: Callable[[_Ahead], bool]) -> AskedRows | None:
        with self._opening:
            for place_, one in enumerate(self._ahead):
                if are_these(one):
                    del self._ahead[place_]
                    return one.asked
        return None

    def _take_turn(self, learning: bool) -> None:
        """Wait, before the first lookup, for ``stagger`` updates of each lower rank, while updates arrive."""
        if not (self._stagger and learning):
            return
        wanted, seen, still = self._stagger * self.client.rank, 0, 0
        while still * LOOK_S < STILL_S and (there := self.client.updates()) < wanted:
            seen, still = there, 0 if there > seen else still + 1
            time.sleep(LOOK_S)
        self._stagger = 0

    def ahead(self, ids: Any, *, learning: bool) -> None:
        self._take_turn(learning)
        read = self.reader.read(ids)
        read = replace(read, values=read.values.copy())  # a script may change its tensor in place
        asked = self.client.ask(self.router.route(read), learning=learning)
        with self._opening:
            self._ahead.append(_Ahead(ids, _changes(ids), read, asked))
        self.drop_ahead(_MOST_AHEAD)

    def drop_ahead(self, most: int = 0) -> None:
        with self._opening:
            unused = [self._ahead.popleft().asked for _ in range(len(self._ahead) - most)]
        for one in unused:
            one.drop()  # outside the lock, as it takes the client's

    def give(self, asked: AskedRows, gradient: Floats) -> None:
        """Send the scaled gradient of a batch's numbers, shape (batch, width)."""
        factor = self.scale()
        self.client.give(asked, gradient if factor == 1.0 else gradient * np.float32(factor))

    def shards(self) -> tuple[ShardSpec, ...]:
        assert self.client is not None  # opens it, which makes the plan
        return self._shards

    def leave(self) -> None:
        if self._client is not None:
            self._client.leave()

    def close(self) -> None:
        """Close the connection and the shards in this process. The next request connects to servers again."""
        with self._opening:
            self._ended |= self._client is not None
            self._client = None
            self._ahead.clear()
        self._closing()
        self._hosts.clear()  # and with them the rows

    def _open(self) -> TableClient:
        world = discover()
        with ExitStack() as stack:
            directory, count = self._servers(world, stack)
            plan = place(self.spec.tables, count, speeds=self._by.speeds_of(count), lookups=self._by.lookups)
            self._shards = tuple(ShardSpec(self.spec, ranges) for ranges in plan)
            self.router = Router(self.spec, self._shards)
            line = ZmqLine(directory, count, codec=table_wire)
            client = TableClient(
                world.rank,
                self._shards,
                line,
                TorchKernels(),
                timeout_s=self.timeout_s,
                wire=self._wire,
                share=self.share,
            )
            stack.callback(client.close)
            for host in self._hosts:
                host.failed = client.broken
            if any(one.on_disk for one in self.spec.tables):
                client.stats()  # a server without room for the rows answers so before the training
            self._client = client
            self._closing = weakref.finalize(self, stack.pop_all().close)
            ends_with_the_program(self._closing)
        return self._client

    def _servers(self, world: World, stack: ExitStack) -> tuple[Any, int]:
        if world.run_directory is not None and (count := shards_in(world.run_directory / TABLES)):
            place = world.run_directory / TABLES, world.rank
            if _on_servers.setdefault(place, self) is not self:
                raise ConfigError(
                    "this process has 2 collections of tables, and the servers of a run hold one: put all tables into "
                    "one EmbeddingCollection, and pool rows in the model with torch.nn.functional.embedding_bag"
                )
            stack.callback(_on_servers.pop, place, None)
            return place[0], count
        if not world.alone:
            raise ConfigError(
                f"{world.size} workers and no table servers: each would train its own tables; start the script with "
                "`uneven run --tables 1`, or more"
            )
        if self._ended:
            raise ConfigError("the tables were closed, and their rows ended with them: call tables.close() last")
        folder = TemporaryFolder(SHARD_FOLDER)
        stack.callback(folder.remove)
        make_keys(folder.path)
        self._hosts = [TableHost(folder.path, number, 1) for number in range(self._alone)]
        for host in self._hosts:
            stack.callback(host.close)
        return folder.path, self._alone


_on_servers: weakref.WeakValueDictionary[tuple[Path, int], TableAccess] = weakref.WeakValueDictionary()
"""The access of a rank to the servers in a directory. Updates of a second one would have numbers of the first one's."""


def _changes(ids: Any) -> Any:
    """Return a tensor's version counter, which in-place changes increment; otherwise NaN, which equals nothing."""
    return ids._version if isinstance(ids, Tensor) and not ids.is_inference() else math.nan
