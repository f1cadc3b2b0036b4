"""Directed edges as two columns."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from uneven.policy.core.exact import Bits, splitmix64

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

    def ordered(self, order: Wholes | Ids) -> "EdgeList":
        """Return the edges of these numbers, in this order."""
        return EdgeList(self.source[order], self.target[order], self.vertices)

    def degree(self) -> Wholes:
        """Return in-degree plus out-degree, int64 (vertices,)."""
        return np.bincount(self.source, minlength=self.vertices) + np.bincount(self.target, minlength=self.vertices)

    def fingerprint(self) -> int:
        """Return a 64-bit hash of the graph that does not depend on the order of its edges."""
        key = self.source.astype(np.uint64) * np.uint64(self.vertices) + self.target.astype(np.uint64)
        return int(splitmix64(key).sum(dtype=np.uint64)) ^ self.vertices


def chance(key: Bits) -> npt.NDArray[np.float64]:
    """Return pseudo-random numbers in [0, 1), in the shape of ``key``."""
    return (splitmix64(key) >> np.uint64(11)).astype(np.float64) * 2.0**-53
