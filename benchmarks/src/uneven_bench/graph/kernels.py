"""Sums over neighbours: ours, ours without the compiled file, DGL's, and the fastest of PyG's."""

import ctypes
import statistics
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from uneven.errors import TrainingError
from uneven.graph import native
from uneven.graph.adjacency import Adjacency
from uneven.graph.reduce import bag_sums, neighbour_sum, row_sums
from uneven_bench.graph import rivals
from uneven_bench.graph.graphs import BenchGraph
from uneven_bench.harness.figures import Spread, by_turns

Arms = dict[str, Callable[[], Any]]

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
PYG = ("pyg csr", "pyg EdgeIndex", "pyg csr reduce")


def kernel_cell(graph: BenchGraph, width: int, rounds: int, backward: bool) -> dict[str, Any]:
    """Measure one graph at one width, in the file's order of vertices. ``backward``: forward and backward of the mean
    instead of the sum's forward. Result: ``seconds`` (arm → median), ``ratios`` (rival → speed-up of ours), ``middle``
    (the same, its middle half), ``bag`` (rival → the same of embedding_bag's). Raises TrainingError: arms disagree."""
    torch.manual_seed(0)
    x = torch.randn(graph.edges.vertices, width)
    arms = (_means if backward else _sums)(graph, x)
    _agree(arms)
    taken = by_turns(arms, rounds, least_s=0.002)
    taken["pyg"] = min((taken[name] for name in PYG if name in taken), key=statistics.median, default=[])
    rows = {name: each for name, each in taken.items() if each}
    others = [name for name in rows if name not in ("ours", "bag", *PYG)]
    return {
        "seconds": {name: statistics.median(each) for name, each in rows.items()},
        "ratios": {name: Spread.ratio(rows[name], rows["ours"]).median for name in [*others, "bag"]},
        "middle": {name: Spread.ratio(rows[name], rows["ours"]).pair for name in [*others, "bag"]},
        "bag": {name: Spread.ratio(rows[name], rows["bag"]).median for name in others},
    }


def _sums(graph: BenchGraph, x: Tensor) -> Arms:
    edges, adjacency = graph.edges, Adjacency.of(graph.edges)
    arms: Arms = {"bag": lambda: bag_sums(adjacency.into, x)}
    arms["ours"] = (lambda: row_sums(adjacency.into, x)) if native.level() else arms["bag"]
    if not isinstance(rivals.dgl(), str):
        g, ops = rivals.dgl_graph(edges), rivals.dgl().ops
        arms["dgl"] = lambda: ops.copy_u_sum(g, x)
    if not isinstance(rivals.pyg(), str):
        a, spmm = rivals.csr(edges), rivals.pyg().utils.spmm
        index = rivals.pyg().EdgeIndex(graph.index.flip(0), sparse_size=a.shape).sort_by("row").values
        index.fill_cache_()
        arms["pyg csr"] = lambda: spmm(a, x, "sum")
        arms["pyg EdgeIndex"] = lambda: index.matmul(x)
    return arms


def _means(graph: BenchGraph, x: Tensor) -> Arms:
    edges, adjacency = graph.edges, Adjacency.of(graph.edges)
    x.requires_grad_()
    back = torch.randn_like(x)
    degree = adjacency.into.starts.diff().clamp(min=1).float()[:, None]
    inverse = 1.0 / degree[:, 0]

    def through(mean: Callable[[], Tensor]) -> Callable[[], Tensor]:
        def both() -> Tensor:
            (found,) = torch.autograd.grad(mean(), x, back)
            return found

        return both

    arms: Arms = {"ours": through(lambda: neighbour_sum(x, adjacency, inverse))}
    arms["bag"] = through(lambda: _BagSum.apply(x, adjacency) / degree)
    if not isinstance(rivals.dgl(), str):
        g, ops = rivals.dgl_graph(edges), rivals.dgl().ops
        arms["dgl"] = through(lambda: ops.copy_u_mean(g, x))
    if not isinstance(rivals.pyg(), str):
        a, spmm = rivals.csr(edges), rivals.pyg().utils.spmm
        arms["pyg csr"] = through(lambda: spmm(a, x, "sum") / degree)
        arms["pyg csr reduce"] = through(lambda: spmm(a, x, "mean"))
    return arms


class _BagSum(torch.autograd.Function):
    """The fallback of :func:`neighbour_sum` without the compiled file."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, adjacency: Adjacency) -> Tensor:
        ctx.adjacency = adjacency
        return bag_sums(adjacency.into, x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return bag_sums(ctx.adjacency.out, gradients[0].contiguous()), None


def _agree(arms: Arms) -> None:
    wanted = arms["bag"]()
    for name, arm in arms.items():
        worst = float((arm() - wanted).abs().max())
        if worst > 1e-3:
            raise TrainingError(
                f"{name} makes other sums than torch's embedding_bag: {worst:g} is the largest difference"
            )


def geometric(each: Sequence[float]) -> float:
    return statistics.geometric_mean(each)


def keep_memory() -> bool:
    """Let malloc keep freed memory in this process, and return whether it does."""
    if not sys.platform.startswith("linux"):
        return False
    # By default glibc returns buffers above 32 MB to the system, and each new one costs page faults, more than a
    # kernel's work.
    libc = ctypes.CDLL(None)
    return bool(libc.mallopt(M_MMAP_THRESHOLD, 1 << 30) and libc.mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1))
