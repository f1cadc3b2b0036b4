"""A parameter server in shards: workers push to it and pull from it, each at its own pace.

``Client`` is a worker's end, ``ShardHost`` a shard in a thread, ``python -m uneven.server`` a shard in a process of its
own. What a shard and a client decide is pure (``shard``, ``link``); ``host`` and ``line`` carry it over ZeroMQ. Nothing
here imports torch, but for ``tensors``. How they talk and what is lost when: docs/ideas/server.md.
"""

from uneven.server.client import Client, Reply
from uneven.server.host import ShardHost, Stored
from uneven.server.keys import make_keys
from uneven.server.known import Patience
from uneven.server.line import ZmqLine
from uneven.server.partition import PartitionTable, table_of

__all__ = ["Client", "PartitionTable", "Patience", "Reply", "ShardHost", "Stored", "ZmqLine", "make_keys", "table_of"]
