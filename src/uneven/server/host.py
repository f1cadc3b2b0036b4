"""A shard on a ZeroMQ socket: in a thread (``ShardHost``) or in a process of its own (``python -m uneven.server``)."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection
from pathlib import Path
from typing import NamedTuple

from uneven.server.known import Patience
from uneven.server.shard import Shard
from uneven.server.sockets import LOOPBACK, ShardSockets, ShardThread
from uneven.server.wire import Vector, encode

__all__ = ["LOOPBACK", "ShardHost", "Stored", "serve"]


class Stored(NamedTuple):
    """The state of a shard, for tests and people: nothing in it changes any more."""

    version: int
    vector: Vector
    least_clock: int
    counts: dict[str, int]


class ShardHost(ShardThread):
    """A shard in a thread of this process.

    Args:
        directory: that of :func:`uneven.server.keys.make_keys`; the shard's address is put there.
        shard: number of this shard, from 0.
        members: number of workers.
        ranks: theirs; 0 to members − 1 if None.
        bind: where to listen; the loopback unless told otherwise, as ``tcp://ADDRESS`` that the workers can reach.

    Raises:
        ConfigError: there are no keys, others may read them, or ``bind`` is no address of this machine.
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
    ) -> None:
        self._shard = _shard(range(members) if ranks is None else ranks, patience or Patience())
        super().__init__(ShardSockets(directory, shard, bind, self._shard, encode), f"uneven-shard-{shard}")

    def stored(self) -> Stored:
        """Its state now. The vector is the shard's own and never changed in place."""
        shard = self._shard
        return Stored(shard.version, shard.vector, shard.least_clock, dict(shard.counts))

    def here(self, rank: int) -> bool | None:
        """Whether a worker has been heard lately; None before it has come at all."""
        return self._shard.here(rank)


def serve(
    directory: Path, shard: int, members: int, bind: str, patience: Patience, ended: Callable[[], bool], *,
    growing: bool = False,
) -> None:  # fmt: skip
    """Be a shard until ``ended`` says so. Arguments and errors as of :class:`ShardHost`.

    Args:
        growing: see :class:`uneven.server.shard.Shard`.
    """
    sockets = ShardSockets(directory, shard, bind, _shard(range(members), patience, growing), encode)
    try:
        sockets.serve(ended)
    finally:
        sockets.close()


def _shard(members: Collection[int], patience: Patience, growing: bool = False) -> Shard:
    return Shard(secrets.randbits(63) | 1, members, patience, growing)
