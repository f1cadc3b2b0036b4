"""Directed edges as two columns. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Wholes = npt.NDArray[np.int64]
Ids = npt.NDArray[np.int32]

MOST = 2**31 - 1
"""Vertices of a graph, and edges of one part: both are counted in 32 bits, which halves what a kernel reads."""


@dataclass(frozen=True, slots=True)
class EdgeList:
    """Directed edges of a graph; edge e leads from ``source[e]`` to ``target[e]``.

    Attributes:
        source, target: int32 [edges].
        vertices: how many there are, those without edges included.
    """

    source: Ids
    target: Ids
    vertices: int

    def __len__(self) -> int:
        return len(self.source)

    def ordered(self, order: Wholes | Ids) -> EdgeList:
        """The edges of these numbers, in this order."""
        return EdgeList(self.source[order], self.target[order], self.vertices)

    def degree(self) -> Wholes:
        """int64 [vertices]: edges at each, those that lead in and those that lead out."""
        return np.bincount(self.source, minlength=self.vertices) + np.bincount(self.target, minlength=self.vertices)

    def fingerprint(self) -> int:
        """64 bits that another graph does not have; the order of the edges does not count."""
        key = self.source.astype(np.uint64) * np.uint64(self.vertices) + self.target.astype(np.uint64)
        return int(mixed(key).sum(dtype=np.uint64)) ^ self.vertices


def mixed(key: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """64 bits that look random, the same for equal keys (splitmix64)."""
    with np.errstate(over="ignore"):
        z = key + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def chance(key: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    """Numbers in [0, 1) that look random, the same for equal keys."""
    return (mixed(key) >> np.uint64(11)).astype(np.float64) * 2.0**-53
