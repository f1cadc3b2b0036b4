"""Cut a graph by the machines' speeds, and write the parts to a folder."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from torch import Tensor

from uneven.cluster.files import load
from uneven.errors import ConfigError
from uneven.graph.edges import graph_of, rows_of
from uneven.graph.machine_rates import all_measured
from uneven.graph.methods import cut
from uneven.graph.parts_folder import GraphStore, write_store
from uneven.graph.pure.capacity import GraphRates, StepWork, capped, shares_of
from uneven.graph.pure.cut.partitioner import normal
from uneven.runtime.installed import need


def partition(
    graph: Any,
    num_nodes: int | None = None,
    *,
    path: str | Path,
    parts: int | None = None,
    shares: Sequence[float] | None = None,
    by: str | Path | None = None,
    layers: Sequence[int] | None = None,
    memory: Sequence[float] | None = None,
    method: str = "ne",
    beta: float | None = None,
    seed: int = 0,
    tensors: Mapping[str, Tensor | NDArray[Any]] | None = None,
) -> GraphStore:
    """Cut a graph into one part per worker, and write it to a folder.

    Every edge is in one part; a vertex is in all parts that have one of its edges, and rooted in one of them. Both
    directions of an edge between two vertices of a part are in it.

    Args:
        graph: ``edge_index``, or a graph of PyG, DGL, networkx, SciPy or OGB. Its per-vertex tensors are written, too.
        num_nodes: number of vertices, including those without edges.
        parts: number of parts; by default that of ``shares``.
        shares: speed of each worker's machine, in any unit; equal by default.
        by: instead of shares: ``"speed"``, called by all workers of a run, measures each machine, and rank 0 cuts; or a
            cluster description, a TOML file or the name of one shipped with uneven: its cores and memory.
        layers: widths of the model, (features, hidden, …, classes), with constant features; they determine the cost of
            a vertex. By default (those of ``x``, 64, 16).
        memory: bytes available to each worker, which limit its part.
        method: ne, libra, hdrf, dbh, random, or metis with the extra ``graph``.
        beta: cost of a vertex, in edges; by default as measured by ``by="speed"``, otherwise 10.
        tensors: name → torch or NumPy array of shape (vertices, ...).

    Raises:
        DataError: ids, shapes, edge weights or features are invalid, or there are several types of vertices.
        ConfigError: the method is unknown or not installed, shares do not fit, memory is too small, or a tensor cannot
            be stored.
    """
    if by is not None and (shares is not None or parts is not None):
        raise ConfigError("graph.partition: by= says what each worker can do, and so do shares= and parts=: give one")

    need("graph", "scipy")

    def write(
        each: Sequence[float], rates: Sequence[GraphRates] = (), most: Sequence[float] | None = memory
    ) -> GraphStore:
        edges, own = graph_of(graph, num_nodes)
        kept = rows_of({**own, **(tensors or {})}, edges.vertices)
        work = StepWork.of(layers or (kept["x"].shape[-1] if "x" in kept else 64, 64, 16))
        price = 10.0
        if rates:
            each, price = shares_of(rates, work, len(edges), edges.vertices)
        price = price if beta is None else beta
        each = normal(each, len(each) if parts is None else parts)
        if most is not None:
            if len(most) != len(each):
                raise ConfigError(f"memory of {len(most)} machines, and there are {len(each)} parts: give one for each")
            whole = work.whole_bytes(len(edges), edges.vertices)
            each = capped(each, [one / whole for one in most])
        found = cut(edges, method, each, seed, price)
        told = {"method": method, "seed": seed, "shares": each, "beta": price}
        return write_store(Path(path), edges, found, told, kept)

    if by == "speed":
        with all_measured() as (rates, rank):
            found = write((), rates) if rank == 0 else None
        return found or GraphStore(path)
    if by is not None:
        nodes = load(by).nodes
        limits = [math.inf if node.memory_bytes is None else node.memory_bytes for node in nodes]
        return write([node.cores * node.share.at(0.0) for node in nodes], most=limits if memory is None else memory)
    return write([1.0] * (1 if parts is None else parts) if shares is None else shares)
