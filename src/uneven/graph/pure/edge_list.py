"""Directed edges as two columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Wholes = npt.NDArray[np.int64]
Ids = npt.NDArray[np.int32]

MOST = 2**31 - 1
"""The maximum number of vertices, and of edges of one part: int32 halves the memory that kernels read."""


@dataclass(frozen=True, slots=True)
class EdgeList:
    """The directed edges of a graph; edge e leads from ``source[e]`` to ``target[e]``."""

    source: Ids  # int32 (edges,)
    target: Ids  # int32 (edges,)
    vertices: int  # including those without edges

    def __len__(self) -> int:
        return len(self.source)

    def ordered(self, order: Wholes | Ids) -> EdgeList:
        """Return the edges of these numbers, in this order."""
        return EdgeList(self.source[order], self.target[order], self.vertices)

    def degree(self) -> Wholes:
        """Return in-degree plus out-degree, int64 (vertices,)."""
        return np.bincount(self.source, minlength=self.vertices) + np.bincount(self.target, minlength=self.vertices)

    def fingerprint(self) -> int:
        """Return a 64-bit hash of the graph that does not depend on the order of its edges."""
        key = self.source.astype(np.uint64) * np.uint64(self.vertices) + self.target.astype(np.uint64)
        return int(mixed(key).sum(dtype=np.uint64)) ^ self.vertices


def mixed(key: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return 64 pseudo-random bits per key, in the shape of ``key`` (splitmix64, Steele et al. 2014)."""
    with np.errstate(over="ignore"):  # wraps on purpose
        z = key + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def chance(key: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    """Return pseudo-random numbers in [0, 1), in the shape of ``key``."""
    return (mixed(key) >> np.uint64(11)).astype(np.float64) * 2.0**-53
