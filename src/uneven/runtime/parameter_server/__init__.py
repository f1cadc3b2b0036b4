"""A sharded parameter server: workers push to it and pull from it asynchronously.

``Client`` is a worker's end. A shard is a ``ShardHost`` in a thread or ``python -m uneven.runtime.parameter_server``
in its own process.
The decisions of both ends are pure (``shard``, ``link``); ``host`` and ``line`` transport messages over ZeroMQ. Only
``tensors`` imports torch. The protocol and its losses: docs/ideas/server.md.
"""

from uneven.runtime.messages.keys import make_keys
from uneven.runtime.parameter_server.client import Client, Reply
from uneven.runtime.parameter_server.connection import ZmqLine
from uneven.runtime.parameter_server.pure.partition import PartitionTable, table_of
from uneven.runtime.parameter_server.pure.roster import Patience
from uneven.runtime.parameter_server.shard_host import ShardHost

__all__ = ["Client", "PartitionTable", "Patience", "Reply", "ShardHost", "ZmqLine", "make_keys", "table_of"]
