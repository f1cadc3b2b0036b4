"""Partitioners: rows of an exchange, balance of the shares, and edges cut in a second."""

import ctypes
import importlib
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch

from uneven.graph.cutting import cut
from uneven.graph.pure.clone_plan import Holders, roots
from uneven.graph.pure.cut.partitioner import EdgeCut, figures
from uneven.graph.pure.edge_list import EdgeList
from uneven_bench.graph import rivals
from uneven_bench.graph.graphs import BenchGraph
from uneven_bench.harness.figures import by_turns

SHARES = (0.5, 0.25, 0.15, 0.1)
BETA = 10.0
OURS = ("ne", "libra", "hdrf", "dbh", "random")


def cuts(one: BenchGraph, parts: tuple[int, ...], rounds: int) -> dict[str, Any]:
    """Cut one graph. Result: ``rows`` (parts → method → rows that an exchange moves each way), ``balance`` (the same,
    most edges of a part over its share), ``cost_over_target`` (of ne at unequal shares, the fullest part),
    ``edges_per_s`` (method → at four parts), ``libra_vs_dgl``."""
    edges = one.edges
    found: dict[str, Any] = {"rows": {}, "balance": {}}
    for count in parts:
        each = (1.0 / count,) * count
        told = {method: _judged(edges, cut(edges, method, each, 0, BETA), each) for method in OURS}
        found["rows"][count] = {method: shown.clone_rows for method, shown in told.items()}
        found["balance"][count] = {method: shown.balance for method, shown in told.items()}
    found["cost_over_target"] = over_target(edges, cut(edges, "ne", SHARES, 0, BETA), SHARES)
    quarter = (0.25,) * 4
    arms: dict[str, Callable[[], Any]] = {method: partial(cut, edges, method, quarter, 0, BETA) for method in OURS}
    if not isinstance(rivals.dgl(), str):
        arms["dgl libra"] = partial(_dgl_libra, one, 4)
    seconds = {name: statistics.median(each) for name, each in by_turns(arms, rounds, warm=0).items()}
    found["edges_per_s"] = {method: len(edges) / one_s for method, one_s in seconds.items()}
    if "dgl libra" in seconds:
        found["libra_vs_dgl"] = seconds["dgl libra"] / seconds["libra"]
    return found


def over_target(edges: EdgeList, found: EdgeCut, shares: tuple[float, ...]) -> float:
    """Return the cost of the part furthest above its share: edges + β · roots, as each machine then has."""
    held = _held(edges, found)
    counts = np.diff(np.asarray(found.bounds)).tolist()
    rooted = np.bincount(roots(held, shares, counts, BETA), minlength=len(shares))
    cost = np.asarray(counts) + BETA * rooted
    return float((cost / cost.sum() / np.asarray(shares)).max())


def _judged(edges: EdgeList, found: EdgeCut, shares: tuple[float, ...]) -> Any:
    return figures(_held(edges, found), found.bounds, shares)


def _held(edges: EdgeList, found: EdgeCut) -> Any:
    return Holders.of(edges.ordered(found.order), found.bounds).held


def _dgl_libra(one: BenchGraph, parts: int) -> None:
    """Run DGL's loop, in its order of edges, with the text files that it writes and nothing else."""
    rivals.dgl()
    vertex_cut = importlib.import_module("dgl._sparse_ops").libra_vertex_cut
    source, target = one.index
    degree = torch.bincount(source, minlength=one.edges.vertices) + torch.bincount(target, minlength=one.edges.vertices)
    with tempfile.TemporaryDirectory(prefix="uneven-graph-") as folder, _without_print():
        vertex_cut(
            parts, degree, degree.clone(), torch.zeros(parts, dtype=torch.int64), source.contiguous(),
            target.contiguous(), torch.ones_like(source), torch.zeros(len(source), dtype=torch.int32),
            one.edges.vertices, len(source), folder,
        )  # fmt: skip


@contextmanager
def _without_print() -> Iterator[None]:
    """Hide the prints of DGL's loop, which bypass sys.stdout."""
    sys.stdout.flush()
    before = os.dup(1)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
    try:
        yield
    finally:
        ctypes.CDLL(None).fflush(None)
        os.dup2(before, 1)
        os.close(before)
