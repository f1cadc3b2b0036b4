"""Bags of rows; a lookup and an update of them in the plainest form, the reference for the kernels. Pure."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from uneven.embedding.config import RowOptimizer, RowwiseAdagrad

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int32]
Halves = npt.NDArray[np.uint16]
"""bfloat16, which numpy does not know."""

CACHE_LINE = 64
"""Bytes that come from memory together."""

_BLOCK = 1 << 14
"""Rows that begin from one seed, so that a row begins alike on whichever shard it is."""


@dataclass(frozen=True, slots=True)
class Bags:
    """Bags of rows of one width on one shard.

    Attributes:
        group: of the shard's rows of one width.
        width: numbers in a row.
        count: of bags.
        ids: in the group, one bag after the other; shape (n,). int32; or int64, of any size, where the group grows.
        each: ids in every bag; 0 where ``lengths`` says it.
        lengths: of the bags; shape (count,), or None.
        weights: of the ids; shape (n,), or None.
        values: a row for each bag, shape (count, width), or None. float32, or bfloat16 as uint16.
    """

    group: int
    width: int
    count: int
    ids: Ids | npt.NDArray[np.int64] | None = None
    each: int = 0
    lengths: Ids | None = None
    weights: Floats | None = None
    values: npt.NDArray[Any] | None = None

    @property
    def sizes(self) -> Ids:
        """Ids of each bag; shape (count,)."""
        return np.full(self.count, self.each, np.int32) if self.lengths is None else self.lengths

    @property
    def bag_of(self) -> npt.NDArray[np.int64]:
        """The bag of each id; shape (n,)."""
        return np.repeat(np.arange(self.count), self.sizes)


class Kernels(Protocol):
    """What a shard computes with: :func:`lookup` and :func:`update`, and bfloat16 for the wire."""

    def lookup(self, rows: Floats, bags: Bags) -> Floats: ...

    def update(self, rows: Floats, sums: Floats, bags: Bags, given: Floats, optimizer: RowOptimizer) -> None: ...

    def halved(self, values: Floats) -> Halves:
        """The same numbers as bfloat16."""
        ...

    def whole(self, values: Halves) -> Floats:
        """The same numbers as float32."""
        ...


def zeros(rows: int, dim: int) -> Floats:
    """Shape (rows, dim). They use no memory before they are written to, and begin where a cache line does: numpy's
    begin 16 bytes later, and rows of 64 bytes would be in two lines each."""
    flat = np.zeros(rows * dim + CACHE_LINE // 4, np.float32)
    first = -flat.ctypes.data % CACHE_LINE // 4
    return flat[first : first + rows * dim].reshape(rows, dim)


def begin(name: str, seed: int, start: int, stop: int, dim: int, spread: tuple[float, float]) -> Floats:
    """Rows ``start`` to ``stop`` of a table as they begin, uniform within ``spread``; shape (stop − start, dim)."""
    least, most = spread
    rows = np.empty((stop - start, dim), np.float32)
    for block in range(start // _BLOCK, -(-stop // _BLOCK)):
        first = block * _BLOCK
        made = np.random.default_rng([seed, zlib.crc32(name.encode()), block])
        values = made.random((_BLOCK, dim), dtype=np.float32) * np.float32(most - least) + np.float32(least)
        low, high = max(start, first), min(stop, first + _BLOCK)
        rows[low - start : high - start] = values[low - first : high - first]
    return rows


def lookup(rows: Floats, bags: Bags) -> Floats:
    """The sums of the rows of each bag; shape (bags, dim)."""
    pooled = np.zeros((bags.count, rows.shape[1]), np.float32)
    np.add.at(pooled, bags.bag_of, _weighted(rows[bags.ids], bags))
    return pooled


def update(rows: Floats, sums: Floats, bags: Bags, given: Floats, optimizer: RowOptimizer) -> None:
    """Step on the rows that are in bags, in place; a row steps once, with the sum of its gradients.

    Args:
        sums: Adagrad's, of each row; shape (rows,).
        given: gradients of each bag's sum; shape (bags, dim).
    """
    assert bags.ids is not None
    found, inverse = np.unique(bags.ids, return_inverse=True)
    total = np.zeros((len(found), rows.shape[1]), np.float64)
    np.add.at(total, inverse, _weighted(given[bags.bag_of].astype(np.float64), bags))
    if isinstance(optimizer, RowwiseAdagrad):
        sums[found] += np.mean(total**2, axis=1)
        total /= (np.sqrt(sums[found].astype(np.float64)) + optimizer.eps)[:, None]
    rows[found] -= optimizer.lr * total


def _weighted(values: npt.NDArray[Any], bags: Bags) -> npt.NDArray[Any]:
    return values if bags.weights is None else values * bags.weights[:, None]


def finite(values: Floats) -> bool:
    """Whether no number is NaN or infinite."""
    flat = values.reshape(-1)
    return math.isfinite(float(np.dot(flat, flat))) or bool(np.isfinite(flat).all())
