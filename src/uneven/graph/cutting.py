"""Cut a graph by what each machine can do, and write it down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from uneven.graph.cut.base import normal
from uneven.graph.edges import edges_of, tensors_of
from uneven.graph.methods import cut
from uneven.graph.order import near_first
from uneven.graph.store import GraphStore, write_store


def partition(
    graph: Any,
    num_nodes: int | None = None,
    *,
    path: str | Path,
    parts: int | None = None,
    shares: Sequence[float] | None = None,
    method: str = "ne",
    beta: float = 10.0,
    seed: int = 0,
    tensors: Mapping[str, Tensor] | None = None,
) -> GraphStore:
    """Cut a graph into parts, one for each worker, and write it to a folder.

    Every edge is in one part; a vertex is wherever one of its edges is, and rooted in one of these. Both directions of
    an edge between two vertices of a part are in it.

    Args:
        graph: PyG's ``Data``, whose tensors with a row for each vertex are written, too; or ``edge_index``.
        num_nodes: vertices, those without edges included.
        parts: how many; by default as many as ``shares``.
        shares: what each worker's machine can do, in any unit; alike by default.
        method: ne, libra, hdrf, dbh, random, or metis with the extra ``graph``.
        beta: what the layers of one vertex cost, in edges.
        tensors: name → a row for each vertex.

    Raises:
        DataError: bad ids or shapes.
        ConfigError: no such method, one that is not installed, or shares that do not fit.
    """
    edges = edges_of(graph, num_nodes)
    if parts is None:
        parts = 1 if shares is None else len(shares)
    each = normal([1.0] * parts if shares is None else shares, parts)
    found = cut(edges, method, each, seed, beta)
    rank = near_first(edges.source, edges.target, edges.vertices) if found.rank is None else found.rank
    facts = {"method": method, "seed": seed, "shares": each, "beta": beta}
    return write_store(Path(path), edges, found, facts, rank, {**tensors_of(graph, edges.vertices), **(tensors or {})})
