"""``EmbeddingBagCollection``: tables that lie on servers, in a model whose other parts are trained as ever."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from uneven.embedding.client import AskedRows, TableStats
from uneven.embedding.config import RowOptimizer, RowwiseAdagrad, Table, TableSpec, tables_of
from uneven.embedding.door import TableDoor
from uneven.embedding.ids import device_of
from uneven.embedding.part import TablesPart
from uneven.embedding.place import MeasuredTables
from uneven.embedding.transfer import read_grown, read_tables, write_table
from uneven.embedding.wire import Say
from uneven.errors import ConfigError

_WIDTHS = ("float32", "bfloat16")
_MEASURED = "measured.json"


class PooledFeatures:
    """What a batch's ids came to: one row a bag, of every feature."""

    def __init__(self, columns: dict[str, slice], values: Tensor) -> None:
        self._columns, self._values = columns, values

    def values(self) -> Tensor:
        """The pooled rows of all features side by side; shape (batch, sum of their dims)."""
        return self._values

    def keys(self) -> list[str]:
        """The features."""
        return list(self._columns)

    def __getitem__(self, feature: str) -> Tensor:
        """The pooled rows of one feature; shape (batch, dim)."""
        return self._values[:, self._columns[feature]]

    def to_dict(self) -> dict[str, Tensor]:
        """The pooled rows of each feature, by its name."""
        return {name: self[name] for name in self._columns}


class EmbeddingBagCollection(nn.Module):
    """Embedding tables, each once for all workers, on servers or in this process.

    The tables are no parameters of the model and have no ``.grad``: the backward pass gives the gradient of the pooled
    rows to the shards, which step on the rows at once (TorchRec's fused optimizers do the same). Each backward pass is
    a step of theirs. No gradient goes to per-sample weights.

    Args:
        tables: :class:`Table`, or TorchRec's ``EmbeddingBagConfig``.
        optimizer: of all rows.
        seed: the rows begin from it, alike on however many shards.
        shards: threads that hold them where this process is alone; ``uneven run --tables K`` starts servers.
        wire: "float32", or "bfloat16" for half the bytes between machines.
        save_every_s: how often each server saves its rows, from which it goes on if it dies; None for never.
        placed_by: folder of an earlier :meth:`save`: tables are placed by what was measured until then, lookups of each
            feature and the servers' speeds, where there are as many. The same for all workers.

    Raises:
        ConfigError: a value is wrong.
    """

    _unpooled = False

    def __init__(
        self,
        tables: Sequence[Any],
        *,
        optimizer: RowOptimizer | None = None,
        seed: int = 0,
        shards: int = 1,
        wire: str = "float32",
        save_every_s: float | None = None,
        placed_by: str | Path | None = None,
    ) -> None:
        super().__init__()
        if wire not in _WIDTHS:
            raise ConfigError(f"wire={wire!r}: it is one of {', '.join(_WIDTHS)}")
        spec = TableSpec(tables_of(tables), optimizer or RowwiseAdagrad(), seed, save_every_s)
        measured = None if placed_by is None else _measured(Path(placed_by))
        self.door = TableDoor(
            spec, shards=shards, halves=wire == "bfloat16", measured=measured, unpooled=self._unpooled
        )
        self.uneven_part = TablesPart(self.door)

    @property
    def tables(self) -> tuple[Table, ...]:
        """As given."""
        return self.door.spec.tables

    @property
    def width(self) -> int:
        """Numbers of a sample: the dims of all features together."""
        return sum(one.dim * len(one.features) for one in self.tables)

    def forward(self, ids: Any) -> PooledFeatures:
        """The pooled rows of a batch, on the device of its ids; ``ids`` as :mod:`uneven.embedding.ids` lists.

        Raises:
            DataError: ids that cannot be.
            PeerError: a shard does not answer.
        """
        values, _ = self._values(ids)
        return PooledFeatures(self.door.columns, values)

    def _values(self, ids: Any) -> tuple[Tensor, AskedRows]:
        asked = self.door.ask(ids)
        values = torch.from_numpy(asked.values())
        if torch.is_grad_enabled():
            values = _Given.apply(torch.zeros((), requires_grad=True), values, asked, self.door)
        return values.to(device_of(ids)), asked

    def flush(self) -> None:
        """Wait until all that the workers have given is in the rows. Every worker that is there has to call it.

        Raises:
            PeerError: somebody did not.
        """
        self.door.client.flush()

    def rows(self) -> Iterator[tuple[str, int, Tensor]]:
        """The tables that do not grow as they are, in blocks: table, first row, rows of shape (n, dim)."""
        return read_tables(self.door)

    def grown(self, name: str) -> tuple[Tensor, Tensor]:
        """A table that grows as it is: its ids, shape (n,), and their rows, shape (1 + n, dim). The first row is that
        of all ids that have none; where several servers have one, their mean.

        Raises:
            ConfigError: there is no such table, or it does not grow.
        """
        return read_grown(self.door, name)

    def export(self) -> dict[str, Tensor]:
        """The tables as they are, as a state dict of ``torch.nn.EmbeddingBag`` and of TorchRec's collection:
        ``embedding_bags.<table>.weight`` → shape (rows, dim); of one that grows that of :meth:`grown`, and
        ``embedding_bags.<table>.ids``."""
        found = {
            f"embedding_bags.{one.name}.weight": torch.empty(one.held, one.dim) for one in self.tables if not one.grows
        }
        for name in (one.name for one in self.tables if one.grows):
            found[f"embedding_bags.{name}.ids"], found[f"embedding_bags.{name}.weight"] = self.grown(name)
        for name, start, block in self.rows():
            found[f"embedding_bags.{name}.weight"][start : start + len(block)] = block
        return found

    def load(self, state: dict[str, Tensor]) -> None:
        """Inverse of :meth:`export`, on one worker; Adagrad's sums begin anew.

        Raises:
            ConfigError: a table is missing, or has another shape.
        """
        if growing := [one.name for one in self.tables if one.grows]:
            raise ConfigError(f"load: table {growing[0]!r} grows; save() and restore() keep which id has which row")
        for number, one in enumerate(self.tables):
            weight = state.get(f"embedding_bags.{one.name}.weight")
            if weight is None or weight.shape != (one.rows, one.dim):
                found = "nothing" if weight is None else tuple(weight.shape)
                raise ConfigError(f"table {one.name!r} has the shape ({one.rows}, {one.dim}); the state has {found}")
            write_table(self.door, number, weight)

    def save(self, folder: str | Path) -> None:
        """Let each server write its rows and Adagrad's sums into a folder on its machine, while others train on.

        Rows are of different moments then, each whole; inside of ``session.evaluated()`` of all workers, of one. One
        worker calls it.

        Raises:
            CheckpointError: one cannot.
        """
        self.door.client.do(Say.SAVE, str(Path(folder).absolute()))
        Path(folder).mkdir(parents=True, exist_ok=True)  # the servers may be on another machine
        (Path(folder) / _MEASURED).write_text(self.door.measured().text, encoding="utf-8")

    def restore(self, folder: str | Path) -> None:
        """Inverse of :meth:`save`, on any number of servers. One worker calls it, before others train.

        Raises:
            CheckpointError: rows are missing there, or have another shape.
        """
        self.door.client.do(Say.LOAD, str(Path(folder).absolute()))

    def stats(self) -> TableStats:
        """What has happened on the shards."""
        return self.door.stats()

    def close(self) -> None:
        """End the conversation with the shards. A model that is used again opens it again."""
        self.door.close()

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """A copy has the same tables: threads train on them, and an evaluation reads them."""
        copied = type(self).__new__(type(self))
        nn.Module.__init__(copied)
        copied.door, copied.uneven_part = self.door, self.uneven_part
        copied.training = self.training
        memo[id(self)] = copied
        return copied

    def extra_repr(self) -> str:
        """The tables."""
        return ", ".join(f"{one.name}: {'up to ' if one.grows else ''}{one.held:,} × {one.dim}" for one in self.tables)


class EmbeddingCollection(EmbeddingBagCollection):
    """The same tables without pooling: a row for each id. Every row travels, so that longer bags cost as much more."""

    _unpooled = True

    def forward(self, ids: Any) -> dict[str, Tensor]:  # type: ignore[override]
        """The rows of each feature's ids, bag after bag: feature → shape (its ids, dim); of a tensor of shape (batch,
        features, n), (batch, n, dim).

        Raises:
            DataError: ids that cannot be.
            PeerError: a shard does not answer.
        """
        values, asked = self._values(ids)
        many = dict(zip(self.door.columns, asked.many, strict=True))
        found = {name: values[: many[name], columns] for name, columns in self.door.columns.items()}
        if isinstance(ids, Tensor) and ids.dim() == 3:
            found = {name: one.reshape(len(ids), ids.shape[2], -1) for name, one in found.items()}
        return found


def _measured(folder: Path) -> MeasuredTables:
    try:
        return MeasuredTables.read((folder / _MEASURED).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"placed_by={str(folder)!r}: {error}; give a folder of save()") from error


class _Given(torch.autograd.Function):
    """Nothing in the forward pass; in the backward pass, the gradient goes to the shards."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, values: Tensor, asked: AskedRows, door: TableDoor) -> Tensor:
        ctx.asked, ctx.door = asked, door
        return values

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, None, None]:
        ctx.door.give(ctx.asked, gradient.contiguous().float().numpy())
        return None, None, None, None
