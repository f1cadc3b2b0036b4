"""Recommendation models: embedding tables once for all workers, on servers; the dense part as in any other run.

::

    config.py ○   what tables there are          bags.py       the module in a model
    place.py ○    which shard has which rows     door.py       one worker's way to the shards
    route.py ○    a batch's ids → questions      client.py     asks and gives; link.py ○ what is sent, kept, answered
    rows.py ○     bags, and the reference        wire.py ○     messages
    growing.py ○  ids of any size → rows         files.py      what is saved
    kernels.py    the same, fast                 shard.py ○    what a shard answers; host.py its sockets
    logs.py       click logs as data sets        columns.py ○  a block of their text as arrays

A name is imported when it is first touched, so a server's decisions need no torch. How it is used, and what is lost
when: docs/how-to/recommendation.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from uneven.late import late

if TYPE_CHECKING:
    from uneven.embedding.bags import EmbeddingBagCollection, EmbeddingCollection, PooledFeatures
    from uneven.embedding.columns import Columns
    from uneven.embedding.config import SGD, RowwiseAdagrad, Table
    from uneven.embedding.logs import ClickLog, write_log

__all__ = [
    "SGD", "ClickLog", "Columns", "EmbeddingBagCollection", "EmbeddingCollection", "PooledFeatures", "RowwiseAdagrad",
    "Table", "write_log",
]  # fmt: skip

__getattr__ = late(
    __name__,
    {
        "uneven.embedding.bags": ("EmbeddingBagCollection", "EmbeddingCollection", "PooledFeatures"),
        "uneven.embedding.columns": ("Columns",),
        "uneven.embedding.config": ("RowwiseAdagrad", "SGD", "Table"),
        "uneven.embedding.logs": ("ClickLog", "write_log"),
    },
)
