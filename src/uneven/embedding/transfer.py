"""Transfer of whole tables, block by block, from and to the shards."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from uneven.embedding.access import TableAccess
from uneven.embedding.pure.config import Table
from uneven.embedding.pure.row_optimizers import Bags
from uneven.embedding.pure.sharding_plan import RowRange
from uneven.embedding.pure.table_wire import Say
from uneven.errors import ConfigError

_KEY = "embedding_bags.{}.{}"
_NUMBERS = 1 << 20  # per block


def read_tables(door: TableAccess, kind: Say = Say.READ) -> Iterator[tuple[str, int, Tensor]]:
    """Yield table, first row, and rows of shape (n, dim); with ``Say.SUMS`` Adagrad's sums, shape (n, 1)."""
    for shard, group, part, base in _ranges(door):
        table = door.spec.tables[part.table]
        if table.grows:
            continue
        for start, stop in _blocks(part.rows, table.embedding_dim):
            rows = door.client.rows(shard, _bags(group, table.embedding_dim, base + start, base + stop), kind)
            yield table.name, part.start + start, torch.from_numpy(rows.copy())  # received arrays are read-only


def read_grown(door: TableAccess, name: str) -> tuple[Tensor, Tensor]:
    """Return the ids (n,) of a growing table and its rows (1 + n, dim)."""
    number = next((place for place, one in enumerate(door.spec.tables) if one.name == name and one.grows), None)
    if number is None:
        raise ConfigError(
            f"table {name!r} is not a growing table (rows=None) of {[one.name for one in door.spec.tables]}"
        )
    dim, firsts, ids, rows = door.spec.tables[number].embedding_dim, [], [], []
    for shard, group, part, _ in _ranges(door):
        if part.table == number:
            found = door.client.names(shard, group)
            firsts.append(door.client.rows(shard, _bags(group, dim, 0, 1)).copy())
            for start, stop in _blocks(len(found), dim):  # by id, as its row may be evicted meanwhile
                wanted = Bags(group, dim, stop - start, found[start:stop], 1)
                rows.append(door.client.rows(shard, wanted).copy())
            ids.append(found)
    table = [np.mean(firsts, axis=0, dtype=np.float32), *rows]  # each server has its own shared row
    return torch.from_numpy(np.concatenate(ids)), torch.from_numpy(np.concatenate(table))


def read_state(door: TableAccess, *, sums: bool = False) -> dict[str, Tensor]:
    """Read fixed-size tables: ``embedding_bags.<table>.weight`` (rows, dim), and Adagrad's ``….sum`` (rows,)."""
    found: dict[str, Tensor] = {}
    shapes = _shapes(door.spec.tables)
    for kind, what in ((Say.READ, "weight"), (Say.SUMS, "sum"))[: 1 + sums]:
        for name, start, block in read_tables(door, kind):
            key = _KEY.format(name, what)
            if key not in found:
                found[key] = torch.empty(shapes[key])
            into = found[key][start : start + len(block)]
            into.copy_(block.view_as(into))
    return found


def misfits(tables: Sequence[Table], state: Mapping[str, Tensor]) -> tuple[list[str], list[str], list[str]]:
    """Return the keys that a state lacks, its unknown keys, and messages about wrong shapes and values."""
    growing = (one.name for one in tables if one.grows)
    instead = "grows; save_checkpoint() and load_checkpoint() keep the row of each id"
    wrong = [f"table {name!r} {instead}" for name in growing]
    shapes = _shapes(tables)
    for key in (one for one in shapes if one in state):
        if state[key].shape != shapes[key]:
            wrong.append(f"{key} has the shape {tuple(state[key].shape)}, the table has {shapes[key]}")
        elif not state[key].isfinite().all():
            wrong.append(f"{key} has a NaN or an infinity")
    missing = [key for key in shapes if key.endswith(".weight") and key not in state]
    return missing, [key for key in state if key not in shapes], wrong


def write_state(door: TableAccess, state: Mapping[str, Tensor]) -> None:
    """Set the tables in a state, of shape (rows, dim) and (rows,) for sums; reset Adagrad's sums that it lacks."""
    known = [key for key in _shapes(door.spec.tables) if key in state]
    arrays = {key: np.ascontiguousarray(state[key].detach().to("cpu", torch.float32).numpy()) for key in known}
    for shard, group, part, base in _ranges(door):
        table = door.spec.tables[part.table]
        key, sums = _KEY.format(table.name, "weight"), arrays.get(_KEY.format(table.name, "sum"))
        for start, stop in _blocks(part.rows, table.embedding_dim) if key in arrays else ():
            some = slice(part.start + start, part.start + stop)
            rows, weights = arrays[key][some], None if sums is None else sums[some]
            bags = _bags(group, table.embedding_dim, base + start, base + stop)
            door.client.write(shard, replace(bags, values=rows, weights=weights))


def _shapes(tables: Sequence[Table]) -> dict[str, tuple[int, ...]]:
    fixed = [one for one in tables if not one.grows]
    weights = {_KEY.format(one.name, "weight"): (one.held, one.embedding_dim) for one in fixed}
    return weights | {_KEY.format(one.name, "sum"): (one.held,) for one in fixed}


def _ranges(door: TableAccess) -> Iterator[tuple[int, int, RowRange, int]]:
    """Yield shard, group, range of rows, and the range's first row in the group."""
    for shard, spec in enumerate(door.shards()):
        for group, one in enumerate(spec.groups):
            for part, base in zip(one.ranges, one.bases, strict=True):
                yield shard, group, part, base


def _blocks(rows: int, dim: int) -> Iterator[tuple[int, int]]:
    each = max(1, _NUMBERS // dim)
    return ((start, min(rows, start + each)) for start in range(0, rows, each))


def _bags(group: int, dim: int, start: int, stop: int) -> Bags:
    return Bags(group, dim, stop - start, np.arange(start, stop, dtype=np.int32), 1)
