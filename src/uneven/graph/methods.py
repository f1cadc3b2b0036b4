"""The partitioners by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from uneven.errors import UnknownNameError
from uneven.graph import native
from uneven.graph.cut.base import EdgeCut, Ids
from uneven.graph.cut.expand import expand
from uneven.graph.cut.greedy import check_parts, hdrf, libra, stream_order
from uneven.graph.cut.hashed import cut_dbh, cut_random
from uneven.graph.edge_list import EdgeList
from uneven.graph.metis import cut_metis

Cutter = Callable[[EdgeList, Sequence[float], int, float], EdgeCut]


def cut_libra(edges: EdgeList, shares: Sequence[float], seed: int, beta: float) -> EdgeCut:
    """Libra on a shuffled stream."""
    return _greedy(0, libra, edges, shares, seed)


def cut_hdrf(edges: EdgeList, shares: Sequence[float], seed: int, beta: float) -> EdgeCut:
    """HDRF on a shuffled stream."""
    return _greedy(1, hdrf, edges, shares, seed)


def cut_ne(edges: EdgeList, shares: Sequence[float], seed: int, beta: float) -> EdgeCut:
    """Neighbourhood expansion; the target of a part is edges + β · vertices."""
    first = np.random.default_rng(seed).permutation(edges.vertices)
    given = (edges.source, edges.target, edges.vertices, shares, first, beta)
    order, bounds, rank = native.expanded(*given) or expand(*given)
    return EdgeCut(order, tuple(bounds.tolist()), rank)


def _greedy(kind: int, plain: Callable[..., Ids], edges: EdgeList, shares: Sequence[float], seed: int) -> EdgeCut:
    check_parts(len(shares))
    given = (edges.source, edges.target, edges.vertices, shares, stream_order(len(edges), seed))
    part = native.greedy(kind, *given)
    return EdgeCut.of(plain(*given) if part is None else part, len(shares))


METHODS: Mapping[str, Cutter] = {
    "ne": cut_ne,
    "libra": cut_libra,
    "hdrf": cut_hdrf,
    "dbh": lambda edges, shares, seed, beta: cut_dbh(edges.source, edges.target, edges.vertices, shares, seed),
    "metis": cut_metis,
    "random": lambda edges, shares, seed, beta: cut_random(edges.source, edges.target, edges.vertices, shares, seed),
}


def cut(edges: EdgeList, method: str, shares: Sequence[float], seed: int, beta: float) -> EdgeCut:
    """Cut a graph.

    Args:
        shares: of the cost for each part, which add up to 1.
        beta: what a vertex costs, in edges; ne and metis mind it, others give each part its share of the edges.

    Raises:
        UnknownNameError: no such method.
    """
    if method not in METHODS:
        raise UnknownNameError("partitioner", method, METHODS)
    return METHODS[method](edges, shares, seed, beta)
