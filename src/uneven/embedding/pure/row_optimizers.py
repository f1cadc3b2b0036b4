"""Bags of rows, and the reference implementation of lookup and update for the kernels."""

import math
import zlib
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from uneven.embedding.pure.config import RowOptimizer, RowwiseAdagrad

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int32]

CACHE_LINE = 64  # bytes
BLOCK = 1 << 14  # rows initialized from one seed: a row's initial values must not depend on its shard


@dataclass(frozen=True, slots=True)
class Bags:
    """Bags of rows of one width on one shard."""

    group: int  # index of the shard's array
    width: int  # numbers in a row
    count: int  # number of bags
    ids: Ids | npt.NDArray[np.int64] | None = None  # (n,) int32 rows, bag by bag; int64 ids if the group grows
    each: int = 0  # ids in every bag, or 0 if ``lengths`` is given
    lengths: Ids | None = None  # of the bags, shape (count,), or None
    weights: Floats | None = None  # of the ids, shape (n,), or None
    # A row for each bag: (count, width) float32, float16, or bfloat16 as uint16; (count, width + 4) int8 with scales.
    values: npt.NDArray[Any] | None = None

    @property
    def sizes(self) -> Ids:
        """The number of ids of each bag; shape (count,)."""
        return np.full(self.count, self.each, np.int32) if self.lengths is None else self.lengths

    @property
    def bag_of(self) -> npt.NDArray[np.int64]:
        """The index of each id's bag; shape (n,)."""
        return np.repeat(np.arange(self.count), self.sizes)


class Kernels(Protocol):
    """The operations of a shard: :func:`lookup`, :func:`update`, and the conversion of values for messages."""

    def lookup(self, rows: Floats, bags: Bags) -> Floats: ...

    def update(self, rows: Floats, sums: Floats, bags: Bags, given: Floats, optimizer: RowOptimizer) -> None: ...

    def distinct(self, ids: Any) -> tuple[Ids, Ids]:
        """Return the distinct ids of ``ids`` (n,) int32, in any order, and the index of each id among them (n,)."""
        ...

    def narrowed(self, values: Floats, dtype: str, keys: Any = None) -> npt.NDArray[Any]:
        """As :func:`uneven.embedding.pure.narrow_rows.narrow`, also to the bits of "bfloat16", which numpy lacks."""
        ...

    def whole(self, values: npt.NDArray[Any]) -> Floats:
        """Convert a result of :meth:`narrowed` to float32."""
        ...


def zeros(rows: int, dim: int) -> Floats:
    """Return zeros of shape (rows, dim), aligned to a cache line; untouched pages use no memory."""
    # numpy aligns to 16 bytes only, so that each row of 64 bytes would touch two cache lines.
    flat = np.zeros(rows * dim + CACHE_LINE // 4, np.float32)
    first = -flat.ctypes.data % CACHE_LINE // 4
    return flat[first : first + rows * dim].reshape(rows, dim)


def begin(name: str, seed: int, start: int, stop: int, dim: int, spread: tuple[float, float]) -> Floats:
    """Return the initial rows ``start`` to ``stop`` of a table, uniform in ``spread``; shape (stop − start, dim)."""
    least, most = spread
    rows = np.empty((stop - start, dim), np.float32)
    for block in range(start // BLOCK, -(-stop // BLOCK)):
        first = block * BLOCK
        made = np.random.default_rng([seed, zlib.crc32(name.encode()), block])
        values = made.random((BLOCK, dim), dtype=np.float32) * np.float32(most - least) + np.float32(least)
        low, high = max(start, first), min(stop, first + BLOCK)
        rows[low - start : high - start] = values[low - first : high - first]
    return rows


def lookup(rows: Floats, bags: Bags) -> Floats:
    """Return the sum of the rows (n, dim) of each bag; shape (bags, dim)."""
    pooled = np.zeros((bags.count, rows.shape[1]), np.float32)
    np.add.at(pooled, bags.bag_of, _weighted(rows[bags.ids], bags))
    return pooled


def update(rows: Floats, sums: Floats, bags: Bags, given: Floats, optimizer: RowOptimizer) -> None:
    """Step on the rows (n, dim) in place, once each; ``sums`` (n,) are Adagrad's, ``given`` (bags, dim) gradients."""
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
    """Return whether all values, of any shape, are finite."""
    flat = values.reshape(-1)
    # One pass of BLAS decides nearly always; a square may overflow, so look again before rejecting.
    return math.isfinite(float(np.dot(flat, flat))) or bool(np.isfinite(flat).all())
