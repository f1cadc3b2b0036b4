"""Recommendation models: embedding tables on servers, shared by all workers, under an ordinarily trained dense part.

::

    config.py ○   tables and optimizers          bags.py       the module in a model
    place.py ○    which shard has which rows     door.py       a worker's access to the shards
    route.py ○    a batch's ids → requests       client.py     requests and updates; link.py ○ one connection's state
    rows.py ○     bags, and the reference        wire.py ○     messages
    growing.py ○  ids of any size → rows         files.py      saved rows
    kernels.py    the same, fast                 shard.py ○    a shard's answers; host.py its sockets
    logs.py       click logs as data sets        columns.py ○  a block of their text as arrays

Names are imported lazily, so a server's decisions need no torch. See docs/how-to/recommendation.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from uneven.runtime.lazy import lazy

if TYPE_CHECKING:
    from uneven.embedding.bags import EmbeddingBagCollection, EmbeddingCollection, PooledFeatures
    from uneven.embedding.logs import ClickLog, write_log
    from uneven.embedding.pure.columns import Columns
    from uneven.embedding.pure.config import SGD, RowwiseAdagrad, Table

__all__ = [
    "SGD", "ClickLog", "Columns", "EmbeddingBagCollection", "EmbeddingCollection", "PooledFeatures", "RowwiseAdagrad",
    "Table", "write_log",
]  # fmt: skip

__getattr__ = lazy(
    __name__,
    {
        "uneven.embedding.bags": ("EmbeddingBagCollection", "EmbeddingCollection", "PooledFeatures"),
        "uneven.embedding.pure.columns": ("Columns",),
        "uneven.embedding.pure.config": ("RowwiseAdagrad", "SGD", "Table"),
        "uneven.embedding.logs": ("ClickLog", "write_log"),
    },
)
