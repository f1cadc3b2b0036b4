"""DLRM on a made log, and the compared kinds of tables: on servers, in this process, as torch's modules."""

from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from uneven.embedding import EmbeddingBagCollection, RowwiseAdagrad, Table
from uneven.embedding.kernels import kernels
from uneven.embedding.pure.row_optimizers import Bags, zeros

FIELDS, DIM, NUMBERS = 26, 16, 13
_LOG = 1 << 15
_RATE = RowwiseAdagrad(lr=0.05)


def rows() -> list[int]:
    """Return the rows of each table: 1,000 to 200,000."""
    return [int(many) for many in np.logspace(3, 5.3, FIELDS)]


class Log:
    """Made-up clicks with ids by Zipf's law. A batch is sliced from tensors, without Python objects for each sample."""

    def __init__(self, samples: int = 1 << 30) -> None:
        random = np.random.default_rng(1)
        self.ids = torch.from_numpy(np.stack([random.zipf(1.15, _LOG) % many for many in rows()], 1))
        self.numbers = torch.from_numpy(random.standard_normal((_LOG, NUMBERS)).astype(np.float32))
        self.clicked = torch.from_numpy((random.random(_LOG) < 0.25).astype(np.float32))
        self._samples = samples

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        return self.ids[index % _LOG], self.numbers[index % _LOG], self.clicked[index % _LOG]

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, ...]:
        found = torch.tensor(indices) % _LOG
        return self.ids[found], self.numbers[found], self.clicked[found]


class ClickNet(nn.Module):
    """The dense part of DLRM: a bottom of layers for the numbers, products of all pairs, a top of layers."""

    pairs: Tensor

    def __init__(
        self, fields: int, numbers: int, bottom: tuple[int, ...] = (64,), top: tuple[int, ...] = (128,)
    ) -> None:
        super().__init__()
        self.bottom = _layers(numbers, *bottom, DIM)
        self.register_buffer("pairs", torch.tril_indices(fields + 1, fields + 1, -1))
        self.top = nn.Sequential(_layers(self.pairs.shape[1] + DIM, *top), nn.Linear(top[-1], 1))

    def forward(self, pooled: Tensor, numbers: Tensor) -> Tensor:
        """Return scores, shape (n,), from pooled rows, (n, fields · dim), and numbers, (n, k)."""
        dense = self.bottom(numbers)
        # no len(): TorchRec's pipeline traces the model
        vectors = torch.cat([dense, pooled], 1).view(dense.shape[0], -1, DIM)
        products = vectors @ vectors.transpose(1, 2)
        score: Tensor = self.top(torch.cat([dense, products[:, self.pairs[0], self.pairs[1]]], 1))
        return score.squeeze(1)


class DLRM(ClickNet):
    """Bottom 13-512-256-64-16, products of all pairs, top 512-256-1, and tables."""

    def __init__(self, tables: nn.Module) -> None:
        super().__init__(FIELDS, NUMBERS, (512, 256, 64), (512, 256))
        self.tables = tables

    def forward(self, ids: Tensor, numbers: Tensor) -> Tensor:
        pooled = self.tables(ids)
        return super().forward(pooled if isinstance(pooled, Tensor) else pooled.values(), numbers)


def _layers(*widths: int) -> nn.Sequential:
    made = [nn.Sequential(nn.Linear(one, two), nn.ReLU()) for one, two in pairwise(widths)]
    return nn.Sequential(*made)


def served() -> nn.Module:
    return EmbeddingBagCollection([Table(many, DIM, f"t{place}") for place, many in enumerate(rows())], optimizer=_RATE)


class FlatTables(nn.Module):
    """All tables as one array in this process, with the servers' kernels: the fastest single process."""

    def __init__(self) -> None:
        super().__init__()
        many = rows()
        self._base = torch.tensor(np.cumsum([0, *many[:-1]]))
        self._kernels = kernels()
        self._rows = zeros(sum(many), DIM)
        self._rows[:] = np.random.default_rng(0).standard_normal(self._rows.shape, dtype=np.float32) * np.float32(0.01)
        self._sums = np.zeros(sum(many), np.float32)

    def forward(self, ids: Tensor) -> Tensor:
        flat = (ids + self._base).to(torch.int32).flatten().numpy()
        bags = Bags(0, DIM, len(flat), flat, 1)
        values = torch.from_numpy(self._kernels.lookup(self._rows, bags)).view(len(ids), -1)
        found: Tensor = _Step.apply(torch.zeros((), requires_grad=True), values, bags, self)
        return found

    def step(self, bags: Bags, gradient: Tensor) -> None:
        given = gradient.contiguous().view(-1, DIM).numpy()
        self._kernels.update(self._rows, self._sums, bags, given, _RATE)


class _Step(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, anchor: Tensor, values: Tensor, bags: Bags, flat: FlatTables) -> Tensor:
        ctx.bags, ctx.flat = bags, flat
        return values

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, None, None]:
        ctx.flat.step(ctx.bags, gradient)
        return None, None, None, None


class ModuleTables(nn.Module):
    """One ``nn.EmbeddingBag`` a table, with sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(many, DIM, mode="sum", sparse=True) for many in rows())

    def forward(self, ids: Tensor) -> Tensor:
        return torch.cat([bag(ids[:, place : place + 1]) for place, bag in enumerate(self.bags)], 1)
