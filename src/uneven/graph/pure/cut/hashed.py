"""Partitioners by hash: random edges, and degree-based hashing (DBH, Xie et al., NIPS 2014)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from uneven.graph.pure.cut.partitioner import EdgeCut
from uneven.graph.pure.edge_list import EdgeList, chance


def cut_random(edges: EdgeList, shares: Sequence[float], seed: int, beta: float) -> EdgeCut:
    """Place each edge randomly; both directions of an edge stay together."""
    low, high = np.minimum(edges.source, edges.target), np.maximum(edges.source, edges.target)
    return _by_key(low.astype(np.uint64) * np.uint64(edges.vertices) + high.astype(np.uint64), shares, seed)


def cut_dbh(edges: EdgeList, shares: Sequence[float], seed: int, beta: float) -> EdgeCut:
    """Place each edge by the hash of its end of lower degree, so that vertices of high degree are split."""
    source, target, degree = edges.source, edges.target, edges.degree()
    first = (degree[source] < degree[target]) | ((degree[source] == degree[target]) & (source < target))
    return _by_key(np.where(first, source, target).astype(np.uint64), shares, seed)


def _by_key(key: npt.NDArray[np.uint64], shares: Sequence[float], seed: int) -> EdgeCut:
    with np.errstate(over="ignore"):
        salted = key * np.uint64(0x2545F4914F6CDD1D) + np.uint64(seed)
    part = np.searchsorted(np.cumsum(shares)[:-1], chance(salted), side="right")
    return EdgeCut.of(part.astype(np.int32), len(shares))
