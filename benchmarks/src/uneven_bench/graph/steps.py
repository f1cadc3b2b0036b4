"""Whole training steps of GraphSAGE and GCN on the whole graph, in one process: ours, DGL's and PyG's."""

import statistics
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from uneven import graph
from uneven_bench.graph import rivals
from uneven_bench.graph.graphs import BenchGraph
from uneven_bench.harness.figures import Spread, by_turns

HIDDEN = 64
Layers = Callable[[int, int], nn.Module]
Forward = Callable[[nn.Module, Tensor], Tensor]


def has_bf16() -> bool:
    """Return whether the processor has instructions for products of bfloat16."""
    return bool(torch.cpu._is_avx512_bf16_supported())


class Net(nn.Module):
    """Two layers of any library. ``make``: in, out → a layer; ``call``: layer, x → its output."""

    def __init__(self, make: Layers, call: Forward, features: int, classes: int) -> None:
        super().__init__()
        self.first = make(features, HIDDEN)
        self.second = make(HIDDEN, classes)
        self._call = call

    def forward(self, x: Tensor) -> Tensor:
        """[rows, features] → [rows, classes]."""
        return self._call(self.second, F.relu(self._call(self.first, x)))


class TimedNet:
    """A net with its optimizer and data; a call takes a step."""

    def __init__(self, net: Net, x: Tensor, y: Tensor, mask: Tensor) -> None:
        self.net = net
        self.x = x
        self.y = y
        self.mask = mask
        self.optimizer = torch.optim.Adam(net.parameters(), lr=0.01)

    def __call__(self) -> float:
        """Take a step, and return its loss."""
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.net(self.x)[self.mask], self.y[self.mask])
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def accuracy(self, mask: Tensor) -> float:
        """Return the accuracy over the vertices of a mask, bool (vertices,)."""
        with torch.no_grad():
            return float((self.net(self.x)[mask].argmax(1) == self.y[mask]).float().mean())


def trainings(one: BenchGraph, kind: str, plain_pyg: bool = False) -> dict[str, TimedNet]:
    """Return one training for each library, each with its own weights. ``kind``: sage or gcn; ``plain_pyg`` adds PyG
    with edge_index."""
    mask = one.file.tensors["train_mask"]
    found: dict[str, TimedNet] = {}

    def add(name: str, make: Layers, call: Forward, x: Tensor, y: Tensor, among: Tensor) -> None:
        torch.manual_seed(0)
        found[name] = TimedNet(Net(make, call, x.shape[1], one.classes), x, y, among)

    for name, dtype in (("ours", None), ("ours bf16", torch.bfloat16)):
        if dtype is None or has_bf16():
            g = graph.load(one.file)
            x = g.constant(g.tensor("x").float(), dtype)
            layers: Layers = graph.SAGEConv if kind == "sage" else graph.GCNConv
            add(name, layers, lambda conv, x, g=g: conv(x, g), x, one.y[g.ids], mask[g.ids])  # type: ignore[misc]
    if not isinstance(rivals.dgl(), str):
        dg, conv = rivals.dgl_graph(one.edges), rivals.dgl().nn.pytorch
        if kind == "gcn":
            dg = rivals.dgl_graph(one.with_loops())
        sage: Layers = lambda i, o: conv.SAGEConv(i, o, "mean")  # noqa: E731
        add("dgl", sage if kind == "sage" else conv.GraphConv, lambda c, x: c(dg, x), one.x, one.y, mask)
    if not isinstance(rivals.pyg(), str):
        a, nn_of = rivals.csr(one.edges), rivals.pyg().nn
        pyg_layers = nn_of.SAGEConv if kind == "sage" else lambda i, o: nn_of.GCNConv(i, o, cached=True)
        add("pyg csr", pyg_layers, lambda c, x: c(x, a), one.x, one.y, mask)
        if plain_pyg:
            add("pyg edge_index", pyg_layers, lambda c, x: c(x, one.index), one.x, one.y, mask)
    return found


def step_cell(one: BenchGraph, kind: str, rounds: int, plain_pyg: bool) -> dict[str, Any]:
    """Measure one graph and model. Result: ``seconds`` (arm → median of a step), ``ratios`` and ``middle`` (rival →
    speed-up of ours), ``bf16`` (rival → the same of ours with bfloat16 features)."""
    arms = trainings(one, kind, plain_pyg)
    taken = by_turns(arms, rounds, least_s=0.05)
    others = [name for name in taken if not name.startswith("ours")]
    found = {
        "seconds": {name: statistics.median(each) for name, each in taken.items()},
        "ratios": {name: Spread.ratio(taken[name], taken["ours"]).median for name in others},
        "middle": {name: Spread.ratio(taken[name], taken["ours"]).pair for name in others},
    }
    if "ours bf16" in taken:
        found["bf16"] = {name: Spread.ratio(taken[name], taken["ours bf16"]).median for name in [*others, "ours"]}
    return found


def learnt(one: BenchGraph, epochs: int) -> dict[str, float]:
    """Return the test accuracy of GraphSAGE in one process, by library, each from its own first weights."""
    found = {}
    for name, training in trainings(one, "sage").items():
        for _ in range(epochs):
            training()
        mask = one.file.tensors["test_mask"]
        if name.startswith("ours"):
            mask = mask[graph.load(one.file).ids]
        found[name] = training.accuracy(mask)
    return found
