"""The partitioners by name, including those that need compiled loops or METIS."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from uneven.errors import ConfigError, UnknownNameError
from uneven.graph import native
from uneven.graph.pure.cut.expand import expand
from uneven.graph.pure.cut.greedy import MOST_PARTS, Rule, hdrf, libra, placed, stream_order
from uneven.graph.pure.cut.hashed import cut_dbh, cut_random
from uneven.graph.pure.cut.partitioner import EdgeCut
from uneven.graph.pure.edge_list import EdgeList
from uneven.runtime.installed import need

Cutter = Callable[[EdgeList, Sequence[float], int, float], EdgeCut]


def cut_ne(edges: EdgeList, shares: Sequence[float], seed: int, beta: float) -> EdgeCut:
    """Cut by neighbourhood expansion; a part's target counts edges + β · vertices."""
    first = np.random.default_rng(seed).permutation(edges.vertices)
    given = (edges, shares, first, beta)
    order, bounds, rank = native.expanded(*given) or expand(*given)
    return EdgeCut(order, tuple(bounds.tolist()), rank)


def _greedy(kind: int, rule: Rule) -> Cutter:
    def cut_stream(edges: EdgeList, shares: Sequence[float], seed: int, beta: float) -> EdgeCut:
        if len(shares) > MOST_PARTS:
            raise ConfigError(f"{len(shares)} parts: libra and hdrf cut into at most {MOST_PARTS}; use 'ne' or 'dbh'")
        given = (edges, shares, stream_order(len(edges), seed))
        part = native.greedy(kind, *given)
        return EdgeCut.of(placed(*given, rule) if part is None else part, len(shares))

    return cut_stream


def cut_metis(edges: EdgeList, shares: Sequence[float], seed: int, beta: float) -> EdgeCut:
    """Cut with METIS through pymetis, or raise :class:`ConfigError`: each vertex, with all its in-edges, is in one
    part.

    It minimizes edges between parts, and balances in-edges + β per vertex. Only rows of sources travel.
    """
    need("graph", "pymetis")
    metis: Any = importlib.import_module("pymetis")
    parts, vertices = len(shares), edges.vertices
    if parts == 1:
        return EdgeCut.of(np.zeros(len(edges), np.int32), 1, owners=np.zeros(vertices, np.int32))
    key = edges.source.astype(np.int64) * vertices + edges.target
    both = np.unique(np.concatenate([key, edges.target.astype(np.int64) * vertices + edges.source]))
    both = both[both // vertices != both % vertices]  # METIS takes undirected graphs without loops
    starts = np.concatenate([[0], np.cumsum(np.bincount(both // vertices, minlength=vertices))])
    weights = np.bincount(edges.target, minlength=vertices) + round(beta)
    _, found = metis.part_graph(
        parts,
        metis.CSRAdjacency(starts, both % vertices),
        vweights=np.maximum(weights, 1),
        tpwgts=list(shares),
        options=metis.Options(seed=seed),
    )
    owners = np.asarray(found, np.int32)
    return EdgeCut.of(owners[edges.target], parts, owners=owners)


METHODS: Mapping[str, Cutter] = {
    "ne": cut_ne,
    "libra": _greedy(0, libra),
    "hdrf": _greedy(1, hdrf),
    "dbh": cut_dbh,
    "metis": cut_metis,
    "random": cut_random,
}


def cut(edges: EdgeList, method: str, shares: Sequence[float], seed: int, beta: float) -> EdgeCut:
    """Cut a graph by ``shares``, which sum to 1; ``beta``, the cost of a vertex in edges, is for ne and metis."""
    if method not in METHODS:
        raise UnknownNameError("partitioner", method, METHODS)
    return METHODS[method](edges, shares, seed, beta)
