"""Some entries of a vector, with their places. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]

WHOLE, HALF, QUARTER = 32, 16, 2
"""Bits of a value: as it is (64 where the vector is of float64), bfloat16, or two."""


@dataclass(frozen=True, slots=True)
class ChunkRows:
    """How picked entries lie in chunks of the vector: as many in each, fewer in a shorter last one.

    Attributes:
        chunk: entries of the vector in a chunk.
        each, last: of them picked, in a whole chunk and in a shorter last one, which may be missing.
        whole: number of whole chunks.
    """

    chunk: int
    each: int
    last: int
    whole: int

    @property
    def count(self) -> int:
        """Entries picked."""
        return self.whole * self.each + self.last

    @property
    def chunks(self) -> int:
        """Chunks that anything is picked of."""
        return self.whole + (self.last > 0)

    @property
    def many(self) -> list[int]:
        """Entries picked of each chunk."""
        return [self.each] * self.whole + [self.last] * (self.last > 0)

    def split(self, values: Array) -> list[Array]:
        """Values of all entries picked, shape (count,), as tables with a row for each chunk."""
        middle = self.whole * self.each
        tables = [values[:middle].reshape(self.whole, self.each), values[middle:].reshape(1, -1)]
        return [table for table in tables if table.size]


@dataclass(frozen=True, slots=True, eq=False)
class Picked:
    """What travels of a vector.

    Attributes:
        size: length of the vector.
        places: of the entries, ascending, shape (count,); None where all travel.
        values: as the receiver has them, shape (count,).
        bits: of a value as it travels.
        rows: how they lie in chunks, where as many travel of each.
    """

    size: int
    places: Array | None
    values: Array
    bits: int = WHOLE
    rows: ChunkRows | None = None

    @property
    def part(self) -> float:
        """The share of the vector's entries that was picked, 0 … 1."""
        return len(self.values) / max(1, self.size)

    def add_to(self, vector: Array, scale: float = 1.0) -> None:
        """vector += scale · these; ``vector`` has the shape (size,)."""
        values = self.values if scale == 1.0 else self.values * vector.dtype.type(scale)
        if self.places is None:
            vector += values
        else:
            vector[self.places] += values

    def dense(self) -> Array:
        """With zeros between, shape (size,)."""
        vector = np.zeros(self.size, dtype=self.values.dtype)
        self.add_to(vector)
        return vector


def rounded(values: Array, bits: int, rows: ChunkRows | None = None) -> Array:
    """The values as they arrive: rounded to bfloat16, or in each chunk to ± two magnitudes; shape as given.

    The two magnitudes of a chunk are the means of those below and above the mean magnitude, which is ours.
    """
    if bits == WHOLE:
        return values
    if bits == HALF:
        return from_bfloat16(to_bfloat16(values)).astype(values.dtype)
    assert rows is not None
    tables = [_two_levels(table.astype(np.float32)).reshape(-1) for table in rows.split(values)]
    return np.concatenate(tables).astype(values.dtype) if tables else values


def to_bfloat16(values: Array) -> Array:
    """The upper halves of float32, rounded to the nearest, ties to even: uint16, shape as given."""
    whole = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    upper = ((whole + (0x7FFF + ((whole >> 16) & 1))) >> 16).astype(np.uint16)
    halves: Array = np.where(np.isnan(values), np.uint16(0x7FC0), upper)
    return halves


def from_bfloat16(halves: Array) -> Array:
    """The float32 of these upper halves, shape as given."""
    return (halves.astype(np.uint32) << 16).view(np.float32)


def _two_levels(table: Array) -> Array:
    size = np.abs(table)
    large = size > size.mean(1, keepdims=True)
    many = large.sum(1, keepdims=True)
    high = np.where(large, size, 0).sum(1, keepdims=True) / np.maximum(many, 1)
    low = np.where(large, 0, size).sum(1, keepdims=True) / np.maximum(table.shape[1] - many, 1)
    levels: Array = np.copysign(np.where(large, high, low), table).astype(np.float32)
    return levels
