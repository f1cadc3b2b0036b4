"""Cuts by a hash: random edges, and degree-based hashing (DBH, Xie et al., NIPS 2014). Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from uneven.graph.cut.base import EdgeCut, Ids, mixed


def cut_random(source: Ids, target: Ids, vertices: int, shares: Sequence[float], seed: int) -> EdgeCut:
    """Any edge anywhere; both directions of one stay together."""
    low, high = np.minimum(source, target), np.maximum(source, target)
    key = low.astype(np.uint64) * np.uint64(vertices) + high.astype(np.uint64)
    return EdgeCut.of(_parts(key, shares, seed), len(shares))


def cut_dbh(source: Ids, target: Ids, vertices: int, shares: Sequence[float], seed: int) -> EdgeCut:
    """Each edge where its end of lower degree is hashed to, so that vertices of high degree are split."""
    degree = np.bincount(source, minlength=vertices) + np.bincount(target, minlength=vertices)
    first = (degree[source] < degree[target]) | ((degree[source] == degree[target]) & (source < target))
    return EdgeCut.of(_parts(np.where(first, source, target).astype(np.uint64), shares, seed), len(shares))


def _parts(key: npt.NDArray[np.uint64], shares: Sequence[float], seed: int) -> Ids:
    with np.errstate(over="ignore"):
        salted = key * np.uint64(0x2545F4914F6CDD1D) + np.uint64(seed)
    return np.searchsorted(np.cumsum(shares)[:-1], mixed(salted), side="right").astype(np.int32)
