"""Streaming partitioners: Libra (Xie et al., NIPS 2014, as in DGL) and HDRF (Petroni et al., 2015).

Pure; :mod:`uneven.graph.native` has the same loops compiled, with identical results.
"""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from uneven.graph.pure.cut.partitioner import EdgeCut
from uneven.graph.pure.edge_list import EdgeList, Ids, chance


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


MOST_PARTS = 64
"""The maximum: the parts of a vertex are the bits of one word."""

Rule = Callable[[Sequence[float], int, int, int, int], int]
"""(load of each part, parts of source and target as bit sets, their degrees) → part of the edge."""


def stream_order(edges: int, seed: int) -> Ids:
    """Return a random permutation (edges,), the order in which edges are placed."""
    # In traversal order nearly all edges would go to one part: Libra chooses only among parts already touched.
    return np.random.default_rng(seed).permutation(np.arange(edges, dtype=np.int32))


def libra(load: Sequence[float], mine: int, theirs: int, own_degree: int, their_degree: int) -> int:
    """Apply Libra's rules; among equally loaded parts, the first wins.

    least(S) is the part of S with the least load; load counts edges, over the part's share. If no end is placed:
    least(all). If one is: least(its parts). If both have parts in common: least(those). Otherwise: least(parts of the
    end of lower degree, or of the target if equal), and the other end gets another copy.
    """
    if not mine or not theirs:
        allowed = mine | theirs or (1 << len(load)) - 1
    else:
        allowed = mine & theirs or (mine if own_degree < their_degree else theirs)
    return min((load[p], p) for p in range(len(load)) if allowed >> p & 1)[1]


def hdrf(load: Sequence[float], mine: int, theirs: int, own_degree: int, their_degree: int) -> int:
    """Apply HDRF's score with λ = 1 and the degrees of the whole graph; among equal scores, the first wins.

    score(p) = g(u, p) + g(v, p) + (most − load(p)) / (1 + most − least), g(u, p) = 2 − deg(u) / (deg(u) + deg(v)) if p
    holds u, otherwise 0.
    """
    part_of = own_degree / (own_degree + their_degree)
    most, least = max(load), min(load)

    def score(p: int) -> float:
        held = (2.0 - part_of) * (mine >> p & 1) + (1.0 + part_of) * (theirs >> p & 1)
        return (most - load[p]) / (1.0 + most - least) + held

    return max(range(len(load)), key=score)


def placed(edges: EdgeList, shares: Sequence[float], order: Ids, rule: Rule) -> Ids:
    """Return the part of each edge, int32 (edges,), placed by ``rule`` in ``order`` (edges,)."""
    degree, held, load = edges.degree().tolist(), [0] * edges.vertices, [0.0] * len(shares)
    step = [1.0 / (share * len(shares)) for share in shares]  # weighted: a large share fills slowly
    found = np.zeros(len(edges), np.int32)
    stream = edges.ordered(order)
    for edge, u, v in zip(order.tolist(), stream.source.tolist(), stream.target.tolist(), strict=True):
        best = rule(load, held[u], held[v], degree[u], degree[v])
        held[u] |= 1 << best
        held[v] |= 1 << best
        load[best] += step[best]
        found[edge] = best
    return found
