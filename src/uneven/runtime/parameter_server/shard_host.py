"""A shard on a ZeroMQ socket: in a thread (``ShardHost``) or in its own process (``python -m
uneven.runtime.parameter_server``)."""

import secrets
from collections.abc import Collection
from pathlib import Path

from uneven.runtime.messages.sockets import LOOPBACK, ShardSockets, ShardThread
from uneven.runtime.parameter_server.pure.roster import Patience
from uneven.runtime.parameter_server.pure.shard import Shard
from uneven.runtime.parameter_server.pure.wire import encode

__all__ = ["LOOPBACK", "ShardHost", "sockets_of"]


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
        self.shard = _shard(range(members) if ranks is None else ranks, patience or Patience(), growing)
        super().__init__(ShardSockets(directory, shard, bind, self.shard, encode), f"uneven-shard-{shard}")


def sockets_of(
    directory: Path, shard: int, members: int, bind: str, patience: Patience, *, growing: bool = False
) -> ShardSockets:
    """Return the sockets of a shard. Arguments and errors as of :class:`ShardHost` and
    :class:`uneven.runtime.parameter_server.pure.shard.Shard`."""
    return ShardSockets(directory, shard, bind, _shard(range(members), patience, growing), encode)


def _shard(members: Collection[int], patience: Patience, growing: bool = False) -> Shard:
    return Shard(secrets.randbits(63) | 1, members, patience, growing)
