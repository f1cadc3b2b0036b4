"""Cut a graph by the machines' speeds, and write the parts to a folder."""

import importlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.benchmark import Timer

from uneven.cluster.files import load
from uneven.errors import ConfigError, DataError, UnknownNameError
from uneven.graph import native
from uneven.graph.adjacency import RowIndex
from uneven.graph.edges import graph_of, rows_of
from uneven.graph.parts_folder import GraphStore, write_store
from uneven.graph.pure.capacity import GraphRates, StepWork, capped, shares_of
from uneven.graph.pure.cut.expand import expand
from uneven.graph.pure.cut.greedy import MOST_PARTS, Rule, cut_dbh, cut_random, hdrf, libra, placed, stream_order
from uneven.graph.pure.cut.partitioner import EdgeCut, normal
from uneven.graph.pure.edge_list import EdgeList
from uneven.graph.reduce import row_sums
from uneven.runtime.installed import need

_ROWS, _EDGES, _WIDTH = 16_384, 1 << 18, 64
_LEAST_S = 0.25
"""Much longer than the 10 ms period in which cgroups limit a share of a core."""


def measured() -> GraphRates:
    """Return this machine's rates, with torch's number of threads."""
    draw = np.random.default_rng(0)
    source, target = draw.integers(0, _ROWS, (2, _EDGES), dtype=np.int32)
    rows = RowIndex.of(target, source, _ROWS)
    x, weight = torch.randn(_ROWS, _WIDTH), torch.randn(_WIDTH, 4 * _WIDTH)
    return GraphRates(
        _seconds(lambda: row_sums(rows, x)) / (_EDGES * _WIDTH),
        _seconds(lambda: x @ weight) / (2 * x.numel() * weight.shape[1]),
    )


@contextmanager
def all_measured() -> Iterator[tuple[list[GraphRates], int]]:
    """Yield every worker's rates, measured at the same time, and this worker's rank; leave when rank 0 has finished."""
    from uneven.run.start.connect import connect
    from uneven.runtime.world import discover

    world = discover()
    if world.size == 1 or world.elastic is not None:
        raise ConfigError(
            "by='speed' measures the workers of a run of several: start the script with uneven run --nproc 4, without "
            "--elastic, or give shares=(4, 2, 1)"
        )
    connection = connect(world, timeout_s=1800.0)
    mine = measured()
    rows = connection.transport.gather([mine.number_s, mine.flop_s]).result()
    assert rows is not None  # all take part
    well = False
    try:
        yield [GraphRates(float(number_s), float(flop_s)) for number_s, flop_s in rows], world.rank
        well = True
    finally:
        # A barrier with the result of rank 0: the other workers must not load a folder that it has not written.
        told = connection.transport.gather([float(well)]).result()
        connection.close()
    if told is None or not told[0][0]:
        # all workers fail with rank 0
        raise DataError("graph.partition failed on rank 0, which partitions for all ranks: see its message")


def _seconds(work: Callable[[], Any]) -> float:
    timer = Timer("work()", globals={"work": work}, num_threads=torch.get_num_threads())
    return timer.blocked_autorange(min_run_time=_LEAST_S).mean


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
        path: the folder to write, new or empty.
        parts: number of parts; by default that of ``shares``.
        shares: speed of each worker's machine, in any unit; equal by default.
        by: instead of shares: ``"speed"``, called by all workers of a run, measures each machine, and rank 0 cuts; or a
            cluster description, a TOML file or the name of one shipped with uneven: its cores and memory.
        layers: widths of the model, (features, hidden, …, classes), with constant features; they determine the cost of
            a vertex. By default (those of ``x``, 64, 16).
        memory: bytes available to each worker, which limit its part.
        method: ne, libra, hdrf, dbh, random, or metis with the extra ``graph``.
        beta: cost of a vertex, in edges; by default as measured by ``by="speed"``, otherwise 10.
        seed: of the random choices of the method.
        tensors: name → torch or NumPy array of shape (vertices, ...).

    Raises:
        DataError: ids, shapes, edge weights or features are invalid, or there are several types of vertices.
        ConfigError: the method is unknown or not installed, shares do not fit, memory is too small, or a tensor cannot
            be stored.
    """
    if by is not None and (shares is not None or parts is not None):
        raise ConfigError("graph.partition: by=, shares= and parts= exclude each other: give one")

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
                raise ConfigError(f"memory of {len(most)} machines for {len(each)} parts: give one for each")
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
