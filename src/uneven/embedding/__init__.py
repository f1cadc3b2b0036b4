"""Recommendation models: embedding tables on servers, shared by all workers, under an ordinarily trained dense part.

::

    a worker    bags.py          the module in a model; features.py: its results
                plain.py         the same tables as modules of torch.nn
                access.py        its access to the shards, with prefetching
                pure/route.py    a batch's ids → requests
                table_client.py  requests and updates; pure/table_conversation.py: the state of one connection
    both        shared_rows.py   rows and gradients in memory that a shard and workers on its machine share
                pure/config.py   tables and optimizers
                pure/sharding_plan.py, pure/table_wire.py    the rows of each shard, and messages
                pure/narrow_rows.py                          float16 and int8 in both
    a shard     table_host.py    its process; pure/table_shard.py: its answers
                kernels.py       fast lookups and updates; pure/row_optimizers.py: their reference
                pure/dynamic_ids.py, table_files.py          ids of any size → rows, and saved rows
                pure/row_cache.py, table_disk.py             rows on disk: those in memory, and files
    a service   table_service.py HTTP and ZeroMQ; table_reader.py: a reader of the shards; pure/lookup_request.py
    a data set  logs.py          click logs; pure/columns.py: a block of their text as arrays

Names are imported lazily, so a server's decisions need no torch. See docs/how-to/recommendation.md.
"""

from typing import TYPE_CHECKING

from uneven.runtime.installed import lazy

if TYPE_CHECKING:
    from uneven.embedding.bags import EmbeddingBagCollection, EmbeddingCollection
    from uneven.embedding.features import PooledFeatures, UnpooledFeatures
    from uneven.embedding.logs import ClickLog, write_log
    from uneven.embedding.plain import PlainTables, RowsInput
    from uneven.embedding.pure.columns import Columns
    from uneven.embedding.pure.config import SGD, RowwiseAdagrad, Table

__all__ = [
    "SGD", "ClickLog", "Columns", "EmbeddingBagCollection", "EmbeddingCollection", "PlainTables", "PooledFeatures",
    "RowsInput", "RowwiseAdagrad", "Table", "UnpooledFeatures", "write_log",
]  # fmt: skip

__getattr__ = lazy(
    __name__,
    {
        "uneven.embedding.bags": ("EmbeddingBagCollection", "EmbeddingCollection"),
        "uneven.embedding.features": ("PooledFeatures", "UnpooledFeatures"),
        "uneven.embedding.plain": ("PlainTables", "RowsInput"),
        "uneven.embedding.pure.columns": ("Columns",),
        "uneven.embedding.pure.config": ("RowwiseAdagrad", "SGD", "Table"),
        "uneven.embedding.logs": ("ClickLog", "write_log"),
    },
)
