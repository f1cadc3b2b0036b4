"""A shard on a ZeroMQ socket: in a thread (``ShardHost``) or in its own process (``python -m
uneven.runtime.parameter_server``)."""

import secrets
from collections.abc import Callable, Collection
from pathlib import Path
from typing import NamedTuple

from uneven.runtime.messages.sockets import LOOPBACK, ShardSockets, ShardThread
from uneven.runtime.parameter_server.pure.roster import Patience
from uneven.runtime.parameter_server.pure.shard import Shard
from uneven.runtime.parameter_server.pure.wire import Vector, encode

__all__ = ["LOOPBACK", "ShardHost", "Stored", "serve"]


class Stored(NamedTuple):
    """A snapshot of a shard, for tests and inspection."""

    version: int
    vector: Vector
    least_clock: int
    counts: dict[str, int]


class ShardHost(ShardThread):
    """A shard in a thread of this process.

    Args:
        directory: that of :func:`uneven.runtime.messages.keys.make_keys`; the shard writes its address there.
        ranks: of the workers; 0 to members − 1 if None.
        bind: address to listen on, ``tcp://ADDRESS`` of this machine; by default the loopback.
        growing: workers with new ranks may come later.

    Raises:
        ConfigError: no keys, keys that others may read, or ``bind`` is not an address of this machine.
    """

    def __init__(
        self,
        directory: Path,
        shard: int,
        members: int,
        *,
        ranks: Collection[int] | None = None,
        bind: str = LOOPBACK,
        patience: Patience | None = None,
        growing: bool = False,
    ) -> None:
        self._shard = _shard(range(members) if ranks is None else ranks, patience or Patience(), growing)
        super().__init__(ShardSockets(directory, shard, bind, self._shard, encode), f"uneven-shard-{shard}")

    def stored(self) -> Stored:
        """Return its present state. The vector is the shard's own; a shard never changes a vector in place."""
        shard = self._shard
        return Stored(shard.version, shard.vector, shard.least_clock, dict(shard.counts))

    def here(self, rank: int) -> bool | None:
        """Return whether a message of a worker has come recently; None before the first."""
        return self._shard.here(rank)


def serve(
    directory: Path,
    shard: int,
    members: int,
    bind: str,
    patience: Patience,
    ended: Callable[[], bool],
    *,
    growing: bool = False,
) -> None:
    """Run a shard until ``ended`` returns True. Arguments and errors as of :class:`ShardHost` and
    :class:`uneven.runtime.parameter_server.pure.shard.Shard`."""
    sockets = ShardSockets(directory, shard, bind, _shard(range(members), patience, growing), encode)
    try:
        sockets.serve(ended)
    finally:
        sockets.close()


def _shard(members: Collection[int], patience: Patience, growing: bool = False) -> Shard:
    return Shard(secrets.randbits(63) | 1, members, patience, growing)
