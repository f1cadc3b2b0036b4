"""METIS' cut of edges, through pymetis: each vertex in one part, with all edges that lead into it."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from uneven.errors import ConfigError
from uneven.graph.cut.base import EdgeCut
from uneven.graph.edge_list import EdgeList


def cut_metis(edges: EdgeList, shares: Sequence[float], seed: int, beta: float) -> EdgeCut:
    """Few edges between parts, and in-edges + β for each vertex by the shares. Sums need no way up: only rows of
    sources travel.

    Raises:
        ConfigError: pymetis is not installed.
    """
    try:
        metis: Any = importlib.import_module("pymetis")
    except ImportError as error:
        raise ConfigError("method='metis': pymetis is not installed: pip install 'uneven[graph]'") from error
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
