"""A shard of tables on a ZeroMQ socket: in a thread, or in its own process (``python -m uneven.embedding``)."""

import secrets
import time
from pathlib import Path

from uneven.embedding.kernels import kernels
from uneven.embedding.pure.table_shard import TableShard
from uneven.embedding.pure.table_wire import encode
from uneven.embedding.shared_rows import shared_by
from uneven.embedding.table_files import TableFiles
from uneven.runtime.messages.process import ShardProgram
from uneven.runtime.messages.sockets import LOOPBACK, ShardSockets, ShardThread
from uneven.runtime.parameter_server.pure.roster import Patience

TABLES = "tables"  # subfolder of a run directory for the addresses and keys of its table servers
PROGRAM = ShardProgram("uneven.embedding", "the tables")


class TableHost(ShardThread):
    """A shard in a thread of this process; ``directory`` is that of :func:`uneven.runtime.messages.keys.make_keys`."""

    def __init__(self, directory: Path, number: int, members: int, *, patience: Patience | None = None) -> None:
        self.shard = _shard(directory, number, members, patience or Patience())
        sockets = ShardSockets(directory, number, LOOPBACK, self.shard, encode, self.shard.shared)
        super().__init__(sockets, f"uneven-tables-{number}")


def sockets_of(directory: Path, number: int, members: int, bind: str, patience: Patience) -> ShardSockets:
    shard = _shard(directory, number, members, patience)
    return ShardSockets(directory, number, bind, shard, encode, shard.shared)


def _shard(directory: Path, number: int, members: int, patience: Patience) -> TableShard:
    files = TableFiles(directory / "saved", number)
    life = secrets.randbits(63) | 1  # 0 means "no life yet"
    return TableShard(life, members, kernels(), files, patience, time.perf_counter, shared_by(life, members))
