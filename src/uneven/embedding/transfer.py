"""Whole tables, block by block, from the shards and to them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from uneven.embedding.door import TableDoor
from uneven.embedding.place import RowRange
from uneven.embedding.rows import Bags
from uneven.errors import ConfigError

_NUMBERS = 1 << 20
"""In one block."""


def read_tables(door: TableDoor) -> Iterator[tuple[str, int, Tensor]]:
    """Table, first row, rows of shape (n, dim)."""
    for shard, group, part, base in _ranges(door):
        table = door.spec.tables[part.table]
        if table.grows:
            continue
        for start, stop in _blocks(part.rows, table.dim):
            rows = door.client.rows(shard, _bags(group, table.dim, base + start, base + stop))
            yield table.name, part.start + start, torch.from_numpy(rows.copy())


def read_grown(door: TableDoor, name: str) -> tuple[Tensor, Tensor]:
    """See :meth:`uneven.embedding.EmbeddingBagCollection.grown`."""
    number = next((place for place, one in enumerate(door.spec.tables) if one.name == name and one.grows), None)
    if number is None:
        raise ConfigError(f"no table {name!r} that grows among {[one.name for one in door.spec.tables]}")
    dim, firsts, ids, rows = door.spec.tables[number].dim, [], [], []
    for shard, group, part, _ in _ranges(door):
        if part.table == number:
            found, slots = door.client.names(shard, group)
            firsts.append(door.client.rows(shard, _bags(group, dim, 0, 1)).copy())
            for start, stop in _blocks(len(slots), dim):
                wanted = Bags(group, dim, stop - start, slots[start:stop], 1)
                rows.append(door.client.rows(shard, wanted).copy())
            ids.append(found)
    table = [np.mean(firsts, axis=0, dtype=np.float32), *rows]
    return torch.from_numpy(np.concatenate(ids)), torch.from_numpy(np.concatenate(table))


def write_table(door: TableDoor, number: int, weight: Tensor) -> None:
    """Make a table these rows; shape (rows, dim)."""
    values = weight.detach().float().contiguous().numpy()
    dim = values.shape[1]
    for shard, group, part, base in _ranges(door):
        if part.table == number:
            for start, stop in _blocks(part.rows, dim):
                rows = np.ascontiguousarray(values[part.start + start : part.start + stop])
                door.client.write(shard, _bags(group, dim, base + start, base + stop, rows))


def _ranges(door: TableDoor) -> Iterator[tuple[int, int, RowRange, int]]:
    """Shard, group, range of rows, and where it begins in the group."""
    for shard, spec in enumerate(door.shards()):
        for group, one in enumerate(spec.groups):
            for part, base in zip(one.ranges, one.bases, strict=True):
                yield shard, group, part, base


def _blocks(rows: int, dim: int) -> Iterator[tuple[int, int]]:
    each = max(1, _NUMBERS // dim)
    return ((start, min(rows, start + each)) for start in range(0, rows, each))


def _bags(group: int, dim: int, start: int, stop: int, values: np.ndarray | None = None) -> Bags:
    return Bags(group, dim, stop - start, np.arange(start, stop, dtype=np.int32), 1, values=values)
