"""The copies of each vertex, and the part in which it is rooted."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from uneven.graph.pure.edge_list import EdgeList, Ids, Wholes, chance

Flags = npt.NDArray[np.bool_]

_ROUNDS = 24  # of balancing, usually far fewer


@dataclass(frozen=True, slots=True)
class Holders:
    """The parts that have an edge of each vertex."""

    sends: Flags  # bool (parts, vertices): has an out-edge of it
    takes: Flags  # bool (parts, vertices): has an in-edge of it

    @classmethod
    def of(cls, edges: EdgeList, bounds: Sequence[int]) -> "Holders":
        sends, takes = np.zeros((2, len(bounds) - 1, edges.vertices), np.bool_)
        for p, (begin, end) in enumerate(pairwise(bounds)):
            sends[p, edges.source[begin:end]] = True
            takes[p, edges.target[begin:end]] = True
        return cls(sends, takes)

    @property
    def held(self) -> Flags:
        """True for any edge; bool (parts, vertices)."""
        return self.sends | self.takes

    def rows(self, root: Wholes | Ids) -> Flags:
        """Return :attr:`held`, bool (parts, vertices), plus the roots: a vertex without edges has a row there."""
        found = self.held
        found[root, np.arange(len(root))] = True
        return found


def roots(held: Flags, shares: Sequence[float], edges: Sequence[int], beta: float) -> Ids:
    """Return the part in which each vertex is rooted, int32 (vertices,): its layers and its loss are computed there.

    Vertices that several parts hold, ``held`` (parts, vertices), balance edges + β · roots according to ``shares``,
    which sum to 1: each goes to a pseudo-random holder. Vertices without edges fill the remaining room.
    """
    parts, vertices = held.shape
    copies = held.sum(axis=0)
    found: Ids = np.argmax(held, axis=0).astype(np.int32)
    total = sum(edges) + beta * vertices
    wanted = np.array([max(0.0, s * total - e) for s, e in zip(shares, edges, strict=True)])
    wanted *= vertices / max(wanted.sum(), 1e-300) if beta else 0.0
    if not wanted.sum():
        wanted = np.asarray(shares) * vertices
    split = np.flatnonzero(copies > 1)
    fixed = np.bincount(found[copies == 1], minlength=parts)
    if len(split):
        found[split] = _among(held[:, split], split, np.maximum(wanted - fixed, 1.0))
    alone = np.flatnonzero(copies == 0)
    if len(alone):
        room = np.maximum(wanted - np.bincount(found[copies > 0], minlength=parts), 0.0)
        ends = np.cumsum(room if room.sum() else wanted) * len(alone) / (room.sum() or wanted.sum())
        found[alone] = np.minimum(np.searchsorted(ends, np.arange(len(alone)), side="right"), parts - 1)
    return found


def _among(held: Flags, vertices: Wholes, wanted: npt.NDArray[np.float64]) -> Ids:
    """Return one holder per vertex, drawn with weights that are adjusted until each part has its wanted number."""
    parts = len(held)
    key = vertices.astype(np.uint64) * np.uint64(parts) + np.arange(parts, dtype=np.uint64)[:, None]
    # Exponential race: the least of exponential times with rates w is that of part p with probability w_p / Σ w.
    times = np.where(held, -np.log(np.maximum(chance(key), 1e-300)), np.inf)
    weights = wanted.copy()
    for _ in range(_ROUNDS):
        found = np.argmin(times / weights[:, None], axis=0)
        got = np.bincount(found, minlength=parts)
        ratio = wanted / np.maximum(got, 1.0) * (got.sum() / wanted.sum())
        if np.abs(ratio - 1.0).max() < 0.005:
            break
        weights *= np.clip(ratio, 0.25, 4.0)  # damped, for convergence
        weights /= weights.max()
        weights = np.maximum(weights, 1e-12)
    return np.asarray(found, np.int32)
