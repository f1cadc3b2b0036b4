"""What DistGNN's exchanges learn on a small labelled graph: nearly what one process does, in the mean over cuts.

On one cut alone cd-0, whose backward pass is not exact, ends anywhere from 0.91 to 0.95 where one process has 0.94.
"""

from __future__ import annotations

from pathlib import Path
from statistics import mean

import torch
import torch.nn.functional as F
from sklearn.neighbors import kneighbors_graph
from threaded_graphs import on_threads
from torch import nn

from uneven import graph
from uneven.graph.exchange.clones import CloneExchange
from uneven.testing.digits import load_digits


def write(path: Path, seed: int) -> None:
    images, labels = load_digits()
    near = kneighbors_graph(images, 8).tocoo()
    edges = torch.tensor([near.col.tolist() + near.row.tolist(), near.row.tolist() + near.col.tolist()])
    tensors = {
        "x": torch.tensor(images, dtype=torch.float32) / 16,
        "y": torch.tensor(labels),
        "mask": torch.arange(len(labels)) % 20 == 0,
    }
    graph.partition(edges, len(labels), path=path, shares=(3, 2, 1), method="libra", seed=seed, tensors=tensors)


def learnt(g: graph.PartedGraph) -> float:
    """Accuracy after forty epochs."""
    net = nn.ModuleList([graph.SAGEConv(64, 16, aggr="gcn"), graph.SAGEConv(16, 10, aggr="gcn")])
    draw = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for one in net.parameters():
            one.copy_(torch.randn(one.shape, generator=draw) * 0.2)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.03)
    x, y, mask = g.x, g.y, g.tensor("mask")
    for _ in range(40):
        if isinstance(g.exchange, CloneExchange):
            g.exchange.begin()
        optimizer.zero_grad()
        g.loss(F.cross_entropy, net[1](F.relu(net[0](x, g)), g), y, mask).backward()
        for one in net.parameters():
            assert one.grad is not None
            one.grad = g.total(one.grad * g.exchange.carrier.weight)
        optimizer.step()
    g.finish()
    with torch.no_grad():
        return g.accuracy(net[1](F.relu(net[0](x, g)), g), y, ~mask)


def test_late_sums_learn_nearly_as_well(tmp_path: Path) -> None:
    cuts = [tmp_path / f"p{seed}" for seed in range(1, 6)]
    for seed, path in enumerate(cuts, start=1):
        write(path, seed)
    (alone,) = on_threads(cuts[0], 1, learnt)
    assert alone > 0.9
    assert abs(on_threads(cuts[0], 3, learnt, exchange="exact")[0] - alone) < 0.002
    found = {
        how: mean(on_threads(path, 3, learnt, exchange=how)[0] for path in cuts) for how in ("cd-0", "cd-r:r=5", "0c")
    }
    assert abs(found["cd-0"] - alone) < 0.01
    assert found["cd-r:r=5"] > alone - 0.01
    assert found["0c"] > 0.8  # no promise
