"""Tables as modules of ``torch.nn``, instead of a collection: to serve a model, or to train it in one process."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from uneven.embedding.features import PooledFeatures, UnpooledFeatures
from uneven.embedding.ids import BatchReader, device_of
from uneven.embedding.pure.config import Table, TableSpec
from uneven.embedding.pure.route import BatchIds, Router, picked


class PlainTables(nn.Module):
    """A copy of the rows of a collection, with the same inputs and results. It needs no server, and can be pickled.

    ``embedding_bags`` is an ``nn.ModuleDict``: table → ``nn.EmbeddingBag``, or ``nn.Embedding`` without pooling. Its
    weights are parameters with a ``.grad``. ``state_dict()`` has the keys of ``to_state_dict()`` and
    ``from_state_dict()`` of :class:`~uneven.embedding.EmbeddingBagCollection`. A growing table has its ids in a buffer
    ``ids``, sorted; the row of ``ids[k]`` is ``weight[k + 1]``, and all other ids have ``weight[0]``.

    Args:
        spec: the tables.
        state: their rows, as ``to_state_dict()`` returns them.
        unpooled: whether the results are those of :class:`~uneven.embedding.EmbeddingCollection`.
    """

    def __init__(self, spec: TableSpec, state: Mapping[str, Tensor], *, unpooled: bool = False) -> None:
        super().__init__()
        self.embedding_bags = nn.ModuleDict({one.name: _module(one, state, unpooled) for one in spec.tables})
        self._tables = spec.tables
        self._unpooled = unpooled
        self._reader = BatchReader(spec, unpooled=unpooled)
        self._router = Router(spec, [])

    def forward(self, ids: Any) -> PooledFeatures | UnpooledFeatures:
        """Return what the collection returns for these ids; raise :class:`DataError` if they are invalid."""
        given, found = self._read(ids)
        values = torch.cat([self._pooled(found, place) for place in range(found.features)], 1).to(device_of(ids))
        if self._unpooled:
            return UnpooledFeatures(values, given, self._router, even=getattr(ids, "ndim", 0) == 3)
        return PooledFeatures(self._router.columns, values)

    @torch.compiler.disable(reason="ids are read with NumPy; compile without fullgraph=True")
    def _read(self, ids: Any) -> tuple[BatchIds, BatchIds]:
        given = self._reader.read(ids)
        return given, self._router.rows_of(given)

    def _pooled(self, ids: BatchIds, feature: int) -> Tensor:
        table, mine = self._tables[self._router.table_of[feature]], picked(ids, np.array([feature]))
        module: Any = self.embedding_bags[table.name]
        weight: Tensor = module.weight
        rows, sizes = torch.from_numpy(mine.values), torch.from_numpy(mine.sizes[:, 0])
        if table.grows:
            known = module.ids.cpu()
            at = torch.searchsorted(known, rows).clamp(max=len(known) - 1)
            rows = torch.where(known[at] == rows, at + 1, 0) if len(known) else torch.zeros_like(rows)
        scale = None if mine.weights is None else torch.from_numpy(mine.weights).to(weight)
        begins = (sizes.cumsum(0) - sizes).to(weight.device)
        out = F.embedding_bag(rows.to(weight.device), weight, begins, mode="sum", per_sample_weights=scale)
        return out / sizes.clamp(min=1)[:, None].to(weight) if table.pooling == "mean" else out


class RowsInput(nn.Module):
    """The rows of a batch as an input of the model, instead of a collection: for an export of the dense part alone.

    Args:
        columns: name of a feature → its columns in the rows of a batch.
    """

    def __init__(self, columns: dict[str, slice]) -> None:
        super().__init__()
        self._columns = columns

    def forward(self, values: Tensor) -> PooledFeatures:
        """Return ``values`` (batch, sum of the dims of all features) as the result of the collection."""
        return PooledFeatures(self._columns, values)


def _module(table: Table, state: Mapping[str, Tensor], unpooled: bool) -> nn.Module:
    weight = state[f"embedding_bags.{table.name}.weight"]
    ids = state.get(f"embedding_bags.{table.name}.ids")
    if ids is not None:
        ids, order = ids.sort()
        weight = torch.cat([weight[:1], weight[1:][order]])
    # Other ids share this row, or it is not the id's.
    no_id = None if table.modulo or table.grows or table.no_id not in range(len(weight)) else table.no_id
    more: dict[str, Any] = {} if unpooled else {"mode": table.pooling}
    kind = nn.Embedding if unpooled else nn.EmbeddingBag
    made: nn.Module = kind.from_pretrained(weight, freeze=False, padding_idx=no_id, **more)
    if ids is not None:
        made.register_buffer("ids", ids)
    return made
