"""A shard of tables on a ZeroMQ socket: in a thread, or in a process of its own (``python -m uneven.embedding``)."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from pathlib import Path

from uneven.embedding.files import TableFiles
from uneven.embedding.kernels import kernels
from uneven.embedding.shard import TableShard
from uneven.embedding.wire import encode
from uneven.server.known import Patience
from uneven.server.process import ShardProgram
from uneven.server.sockets import LOOPBACK, ShardSockets, ShardThread

TABLES = "tables"
"""Folder of a run directory for the addresses and keys of its table servers."""

PROGRAM = ShardProgram("uneven.embedding", "the tables")
"""What ``uneven run --tables`` starts."""


class TableHost(ShardThread):
    """A shard in a thread of this process.

    Args:
        directory: that of :func:`uneven.server.keys.make_keys`.
        number: of this shard, from 0.
        members: number of workers.

    Raises:
        ConfigError: as :class:`uneven.server.sockets.ShardSockets`.
    """

    def __init__(self, directory: Path, number: int, members: int, *, patience: Patience | None = None) -> None:
        self.shard = _shard(directory, number, members, patience or Patience())
        super().__init__(ShardSockets(directory, number, LOOPBACK, self.shard, encode), f"uneven-tables-{number}")


def serve(directory: Path, number: int, members: int, bind: str, patience: Patience, ended: Callable[[], bool]) -> None:
    """Be a shard until ``ended`` says so."""
    sockets = ShardSockets(directory, number, bind, _shard(directory, number, members, patience), encode)
    try:
        sockets.serve(ended)
    finally:
        sockets.close()


def _shard(directory: Path, number: int, members: int, patience: Patience) -> TableShard:
    files = TableFiles(directory / "saved", number)
    return TableShard(secrets.randbits(63) | 1, members, kernels(), files, patience, time.perf_counter)
