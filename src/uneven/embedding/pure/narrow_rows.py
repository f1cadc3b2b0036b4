"""Rows with fewer bits, in messages and on a shard: float16, or int8 with one float32 scale for each row.

::

    stored = unit · ⌊x / unit + u⌋      float16: unit is the distance of two float16 at x; int8: max |row| / 127

u = 1/2 rounds to the nearest. A step of training draws u uniformly from (0, 1), so that the mean of the stored numbers
is x. Without this stochastic rounding, rows with small steps would not move (Zhang, Yang and Yuen, "Training with
low-precision embedding tables", 2018). A row of int8 ends with the 4 bytes of its scale, as FBGEMM's fused rows do.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from uneven.embedding.pure.config import RowOptimizer
from uneven.embedding.pure.row_optimizers import Bags, Floats, Kernels
from uneven.policy.core.exact import Bits, splitmix64

SCALE_BYTES = 4
MOST_FLOAT16 = 65504.0


def narrow(values: Floats, dtype: str, keys: Bits | None = None) -> npt.NDArray[Any]:
    """Return rows (n, dim) as float16 (n, dim), or int8 (n, dim + 4), to the nearest or at random by ``keys`` (n,)."""
    chance: Any = 0.5 if keys is None else chances(keys, values.shape[1])
    if dtype == "float16" and keys is None:
        return np.clip(values, -MOST_FLOAT16, MOST_FLOAT16).astype(np.float16)  # ties to even
    if dtype == "float16":
        step: Floats = np.ldexp(np.float32(1), np.maximum(np.frexp(values)[1] - 11, -24))
        found: Floats = np.clip(np.floor(values / step + chance) * step, -MOST_FLOAT16, MOST_FLOAT16)
        return found.astype(np.float16)
    unit = (np.abs(values).max(1, initial=0) / np.float32(127))[:, None].astype("<f4")
    out = np.empty((len(values), values.shape[1] + SCALE_BYTES), np.int8)
    out[:, :-SCALE_BYTES] = np.clip(np.floor(values / np.where(unit > 0, unit, 1) + chance), -127, 127)
    out[:, -SCALE_BYTES:] = unit.view(np.int8)
    return out


def widen(stored: npt.NDArray[Any]) -> Floats:
    """Return the float32 (n, dim) of a result of :func:`narrow`."""
    if stored.dtype == np.float16:
        return stored.astype(np.float32)
    found: Floats = stored[:, :-SCALE_BYTES] * np.ascontiguousarray(stored[:, -SCALE_BYTES:]).view("<f4")
    return found


def row_bytes(dtype: str, dim: int) -> int:
    """Return the bytes of a stored row."""
    return {"float32": 4 * dim, "float16": 2 * dim, "int8": dim + SCALE_BYTES}[dtype]


def keys_of(rows: npt.NDArray[Any], draw: int) -> Bits:
    """Return the keys (n,) of a step's random numbers, which depend on a row's number and ``draw`` alone."""
    return splitmix64(rows.astype(np.uint64) | np.uint64(draw << 32 & 2**64 - 1))


def chances(keys: Bits, dim: int) -> Floats:
    """Return u (n, dim). It keeps 1/8192 from 0 and 1, so a row that is read and stored again does not change."""
    places: Bits = np.arange(-(-dim // 4), dtype=np.uint64)
    words = splitmix64(np.add.outer(keys, places), 2)
    return ((words.view(np.uint16)[:, :dim] >> 4) + np.float32(0.5)) * np.float32(2.0**-12)


@dataclass(slots=True)
class NarrowRows:
    """An array of rows (n, dim) with fewer bits, which reads and writes float32. A slice of it is a view."""

    data: npt.NDArray[Any]  # (n, dim) float16, or (n, dim + 4) int8
    draws: int = 0

    @classmethod
    def zeros(cls, rows: int, dim: int, dtype: str) -> "NarrowRows":
        """Return zeros; untouched pages use no memory."""
        return cls(np.zeros((rows, row_bytes(dtype, dim) // np.dtype(dtype).itemsize), dtype))

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.float32)

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.data), self.data.shape[1] - SCALE_BYTES * (self.data.dtype == np.int8)

    @property
    def nbytes(self) -> int:
        return self.data.nbytes

    def __len__(self) -> int:
        return len(self.data)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return widen(self.data)

    def __getitem__(self, rows: Any) -> Any:
        return NarrowRows(self.data[rows]) if isinstance(rows, slice) else widen(self.data[rows])

    def __setitem__(self, rows: Any, values: Floats) -> None:
        self.data[rows] = narrow(values, self.data.dtype.name)

    def lookup(self, kernels: Kernels, bags: Bags) -> Floats:
        """As :func:`uneven.embedding.pure.row_optimizers.lookup`."""
        assert bags.ids is not None
        rows = kernels.whole(self.data[bags.ids])
        if bags.each == 1 and bags.weights is None:
            return rows
        return kernels.lookup(rows, replace(bags, ids=np.arange(len(rows), dtype=np.int32)))

    def update(self, kernels: Kernels, sums: Floats, bags: Bags, given: Floats, optimizer: RowOptimizer) -> None:
        """As :func:`uneven.embedding.pure.row_optimizers.update`, with stochastic rounding."""
        assert bags.ids is not None
        found, inverse = np.unique(bags.ids, return_inverse=True)
        rows, held = kernels.whole(self.data[found]), sums[found] if len(sums) else sums
        kernels.update(rows, held, replace(bags, ids=inverse.astype(np.int32)), given, optimizer)
        if len(sums):
            sums[found] = held
        self.draws += 1
        self.data[found] = kernels.narrowed(rows, self.data.dtype.name, keys_of(found, self.draws))
