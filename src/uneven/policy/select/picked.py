"""Entries of a vector, with their places."""

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]

WHOLE, HALF, QUARTER = 32, 16, 2
"""Bits of a value: unchanged (64 for a float64 vector), bfloat16, or two."""


@dataclass(frozen=True, slots=True)
class ChunkRows:
    """The layout of picked entries in chunks: the same number in each, except in a shorter last chunk."""

    chunk: int  # entries of the vector in a chunk
    each: int  # entries picked in a whole chunk
    last: int  # entries picked in a shorter last chunk; 0 without one
    whole: int  # number of whole chunks

    @property
    def count(self) -> int:
        """The number of entries picked."""
        return self.whole * self.each + self.last

    @property
    def chunks(self) -> int:
        """The number of chunks with picked entries."""
        return self.whole + (self.last > 0)

    @property
    def many(self) -> list[int]:
        """The number of entries picked in each chunk."""
        return [self.each] * self.whole + [self.last] * (self.last > 0)

    def split(self, values: Array) -> list[Array]:
        """Split values (count,) into tables with a row for each chunk."""
        middle = self.whole * self.each
        tables = [values[:middle].reshape(self.whole, self.each), values[middle:].reshape(1, -1)]
        return [table for table in tables if table.size]


@dataclass(frozen=True, slots=True, eq=False)
class Picked:
    """The entries of a vector to send."""

    size: int  # length of the vector
    places: Array | None  # ascending, (count,); None for all
    values: Array  # as the receiver gets them, (count,)
    bits: int = WHOLE  # per value in a message
    rows: ChunkRows | None = None  # layout in chunks, if the number per chunk is fixed

    @property
    def part(self) -> float:
        """The share of the vector's entries that were picked, 0 to 1."""
        return len(self.values) / max(1, self.size)

    def add_to(self, vector: Array, scale: float = 1.0) -> None:
        """Compute vector += scale · entries; ``vector`` has shape (size,)."""
        values = self.values if scale == 1.0 else self.values * vector.dtype.type(scale)
        if self.places is None:
            vector += values
        else:
            vector[self.places] += values

    def dense(self) -> Array:
        """Return the vector (size,), with 0 for other entries."""
        vector = np.zeros(self.size, dtype=self.values.dtype)
        self.add_to(vector)
        return vector


def rounded(values: Array, bits: int, rows: ChunkRows | None = None) -> Array:
    """Return the values as the receiver gets them: bfloat16, or per chunk ± two magnitudes; same shape.

    The two magnitudes of a chunk are the means of those below and above the mean magnitude (ours).
    """
    if bits == WHOLE:
        return values
    if bits == HALF:
        return from_bfloat16(to_bfloat16(values)).astype(values.dtype)
    assert rows is not None
    tables = [_two_levels(table.astype(np.float32)).reshape(-1) for table in rows.split(values)]
    return np.concatenate(tables).astype(values.dtype) if tables else values


def to_bfloat16(values: Array) -> Array:
    """Round float32 to the nearest bfloat16, ties to even: uint16 of the same shape."""
    whole = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    upper = ((whole + (0x7FFF + ((whole >> 16) & 1))) >> 16).astype(np.uint16)
    # rounding up could turn a NaN into an infinity
    halves: Array = np.where(np.isnan(values), np.uint16(0x7FC0), upper)
    return halves


def from_bfloat16(halves: Array) -> Array:
    """Return the float32 of bfloat16 bits, of the same shape."""
    return (halves.astype(np.uint32) << 16).view(np.float32)


def _two_levels(table: Array) -> Array:
    size = np.abs(table)
    large = size > size.mean(1, keepdims=True)
    many = large.sum(1, keepdims=True)
    high = np.where(large, size, 0).sum(1, keepdims=True) / np.maximum(many, 1)
    low = np.where(large, 0, size).sum(1, keepdims=True) / np.maximum(table.shape[1] - many, 1)
    levels: Array = np.copysign(np.where(large, high, low), table).astype(np.float32)
    return levels
