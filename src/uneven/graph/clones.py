"""Who holds which vertex, and where each is rooted. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from uneven.graph.edge_list import EdgeList, Ids, Wholes, chance

Flags = npt.NDArray[np.bool_]

_ROUNDS = 24


@dataclass(frozen=True, slots=True)
class Holders:
    """Which part has an edge of which vertex.

    Attributes:
        sends: bool [parts, vertices]: an edge that leads out of it.
        takes: bool [parts, vertices]: an edge that leads into it.
    """

    sends: Flags
    takes: Flags

    @classmethod
    def of(cls, edges: EdgeList, bounds: Sequence[int]) -> Holders:
        """Who holds which vertex, from edges in the order of the parts."""
        sends, takes = np.zeros((2, len(bounds) - 1, edges.vertices), np.bool_)
        for p, (begin, end) in enumerate(pairwise(bounds)):
            sends[p, edges.source[begin:end]] = True
            takes[p, edges.target[begin:end]] = True
        return cls(sends, takes)

    @property
    def held(self) -> Flags:
        """bool [parts, vertices]: any edge."""
        return self.sends | self.takes

    def rows(self, root: Wholes | Ids) -> Flags:
        """bool [parts, vertices]: any edge, or rooted there, which one without edges is."""
        found = self.held
        found[root, np.arange(len(root))] = True
        return found


def roots(held: Flags, shares: Sequence[float], edges: Sequence[int], beta: float) -> Ids:
    """The part in which each vertex is rooted: where its layers are computed, and its loss counts.

    A vertex that one part holds is rooted there. Those that several hold are where parts can be evened out: each goes
    to one of its holders, by chance, so that edges + β · roots is in proportion to the shares as far as they allow. One
    without edges goes where there is most room left.

    Args:
        held: bool [parts, vertices].
        shares: what each part's machine can do, which add up to 1.
        edges: of each part.
        beta: what a root costs, in edges.

    Returns:
        int32 [vertices].
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
    """One holder each, in proportion to weights that are turned until each part has what is wanted of it."""
    parts = len(held)
    key = vertices.astype(np.uint64) * np.uint64(parts) + np.arange(parts, dtype=np.uint64)[:, None]
    # The least of exponential times with rates w falls on each part with probability w / Σ w.
    times = np.where(held, -np.log(np.maximum(chance(key), 1e-300)), np.inf)
    weights = wanted.copy()
    for _ in range(_ROUNDS):
        found = np.argmin(times / weights[:, None], axis=0)
        got = np.bincount(found, minlength=parts)
        ratio = wanted / np.maximum(got, 1.0) * (got.sum() / wanted.sum())
        if np.abs(ratio - 1.0).max() < 0.005:
            break
        weights *= np.clip(ratio, 0.25, 4.0)
        weights /= weights.max()
        weights = np.maximum(weights, 1e-12)
    return np.asarray(found, np.int32)
