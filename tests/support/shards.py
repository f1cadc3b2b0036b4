"""Shards without sockets: the same shards and the same messages, handed over inside one process by one thread."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence

from support.parameter_server import Stored
from uneven.errors import ConfigError
from uneven.runtime.parameter_server.connection import Ear
from uneven.runtime.parameter_server.pure.roster import Patience
from uneven.runtime.parameter_server.pure.shard import Shard
from uneven.runtime.parameter_server.pure.wire import Message, encode

_BEAT_S = 0.02


class LocalShards:
    """A few shards; ``line`` makes a client's line to them. Close it after its clients.

    Args:
        shards: how many.
        members: number of workers.
        growing: whether they may leave and join.
    """

    def __init__(self, shards: int, members: int, *, patience: Patience | None = None, growing: bool = False) -> None:
        self._members, self._patience = members, patience or Patience()
        self._growing = growing
        self._lives = 0
        self._shards: list[Shard | None] = [None] * shards
        self._ears: dict[int, Ear] = {}
        self._posted: queue.SimpleQueue[tuple[int, Message] | None] = queue.SimpleQueue()
        for shard in range(shards):
            self.start(shard)
        self._thread = threading.Thread(target=self._run, name="uneven-local-shards", daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        return len(self._shards)

    def line(self, rank: int) -> LocalLine:
        """For the client of this rank."""
        return LocalLine(self, rank)

    def start(self, shard: int) -> None:
        """Start a shard, which knows nothing; one that runs is killed first."""
        self._lives += 1
        self._shards[shard] = Shard(self._lives, range(self._members), self._patience, self._growing)

    def kill(self, shard: int) -> None:
        """End a shard and lose what it holds."""
        self._shards[shard] = None

    def stored(self, shard: int) -> Stored:
        """The state of a shard.

        Raises:
            ConfigError: it has been killed.
        """
        one = self._shards[shard]
        if one is None:
            raise ConfigError(f"shard {shard} has been killed")
        return Stored.of(one)

    def close(self) -> None:
        """End the thread."""
        self._posted.put(None)
        self._thread.join()

    def attach(self, rank: int, ear: Ear | None) -> None:
        """A line is open (or, with None, closed)."""
        if ear is None:
            self._ears.pop(rank, None)
        else:
            self._ears[rank] = ear

    def post(self, shard: int, message: Message) -> None:
        """Hand over, later."""
        self._posted.put((shard, message))

    def _run(self) -> None:
        next_beat_s = 0.0
        while True:
            try:
                posted = self._posted.get(timeout=_BEAT_S)
            except queue.Empty:
                pass
            else:
                if posted is None:
                    return
                self._deliver(*posted)
            if time.monotonic() >= next_beat_s:
                next_beat_s = time.monotonic() + _BEAT_S
                self._beat()

    def _beat(self) -> None:
        for shard, one in enumerate(self._shards):
            if one is not None:
                self._hand(shard, one.tick(time.monotonic()))
        for ear in list(self._ears.values()):
            for shard in range(len(self._shards)):
                ear.beat(shard)

    def _deliver(self, shard: int, message: Message) -> None:
        one = self._shards[shard]
        if one is not None:
            self._hand(shard, one.take(encode(message), time.monotonic())[1])

    def _hand(self, shard: int, replies: Sequence[Message]) -> None:
        for reply in replies:
            ear = self._ears.get(reply.rank)
            if ear is not None:
                ear.received(shard, reply)


class LocalLine:
    """See :class:`uneven.runtime.parameter_server.connection.ShardLine`."""

    def __init__(self, shards: LocalShards, rank: int) -> None:
        self.shards = len(shards)
        self._to, self._rank = shards, rank

    def open(self, ear: Ear) -> None:
        """Start to hear."""
        self._to.attach(self._rank, ear)

    def post(self, shard: int, messages: Sequence[Message]) -> None:
        """Hand over, later."""
        for message in messages:
            self._to.post(shard, message)

    def where(self, shard: int) -> str:
        """For messages to people."""
        return f"inside this process, {shard + 1} of {self.shards}"

    def close(self) -> None:
        """Hear no more."""
        self._to.attach(self._rank, None)
