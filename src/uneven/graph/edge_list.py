"""Directed edges as two columns. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

MOST = 2**31 - 1
"""Vertices of a graph, and edges of one part: both are counted in 32 bits, which halves what a kernel reads."""


@dataclass(frozen=True, slots=True)
class EdgeList:
    """Directed edges of a graph; edge e leads from ``source[e]`` to ``target[e]``.

    Attributes:
        source, target: int32 [edges].
        vertices: how many there are, those without edges included.
    """

    source: npt.NDArray[np.int32]
    target: npt.NDArray[np.int32]
    vertices: int

    def __len__(self) -> int:
        return len(self.source)

    def fingerprint(self) -> int:
        """64 bits that another graph does not have; the order of the edges does not count."""
        key = self.source.astype(np.uint64) * np.uint64(self.vertices) + self.target.astype(np.uint64)
        with np.errstate(over="ignore"):
            mixed = (key + np.uint64(0x9E3779B97F4A7C15)) * np.uint64(0xBF58476D1CE4E5B9)
            mixed = (mixed ^ (mixed >> np.uint64(31))) * np.uint64(0x94D049BB133111EB)
            return int((mixed ^ (mixed >> np.uint64(29))).sum(dtype=np.uint64)) ^ self.vertices
