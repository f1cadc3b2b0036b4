"""Exact training on parts: outputs, losses and gradients are those of one process."""

from __future__ import annotations

from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from threaded_graphs import features, on_threads, some_graph, weighted
from torch import Tensor, nn

from uneven import graph

VERTICES, WIDTH, CLASSES = 60, 7, 3


class Net(nn.Module):
    def __init__(self, first: nn.Module, second: nn.Module, constant: bool) -> None:
        super().__init__()
        self.first, self.second, self.constant = first, second, constant

    def forward(self, x: Tensor, g: graph.PartedGraph) -> Tensor:
        h = F.relu(self.first(g.constant(x) if self.constant else x, g))
        return self.second(g.dropout(h, 0.3, self.training), g)


def net(layer: str, constant: bool) -> Net:
    torch.manual_seed(3)
    hidden = 5

    def make(wide: int, narrow: int) -> nn.Module:
        if layer == "gcn":
            return graph.GCNConv(wide, narrow)
        if layer == "gin":
            return graph.GINConv(nn.Linear(wide, narrow), eps=0.1, train_eps=True)
        return graph.SAGEConv(wide, narrow, aggr=layer.removeprefix("sage "), normalize=layer == "sage sum")

    return Net(make(WIDTH, hidden), make(hidden, CLASSES), constant).double()


def learnt(g: graph.PartedGraph, whole: Net) -> tuple[Any, ...]:
    model = deepcopy(whole)
    x, y, mask = g.tensor("x"), g.tensor("y"), g.tensor("train_mask")
    for _ in range(2 if model.constant else 1):  # the second time, what is kept of constants is used
        model.zero_grad()
        output = model(x, g)
        loss = g.loss(F.cross_entropy, output, y, mask)
        loss.backward()
    accuracy = g.accuracy(output, y, mask)
    return g.gather(output), [one.grad for one in model.parameters()], g.samples, loss.detach(), accuracy


LAYERS = ["gcn", "gin", "sage mean", "sage sum", "sage gcn", "sage max", "sage min"]


def write(path: Path, method: str, symmetric: bool, dtype: torch.dtype) -> None:
    tensors = {
        "x": features(VERTICES, WIDTH).to(dtype),
        "y": torch.randint(0, CLASSES, (VERTICES,), generator=torch.Generator().manual_seed(5)),
        "train_mask": torch.arange(VERTICES) % 3 != 0,
    }
    edges = some_graph(symmetric=symmetric)
    graph.partition(edges, VERTICES, path=path, shares=(5, 3, 1, 1), method=method, beta=2.0, tensors=tensors)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("method", ["ne", "libra", "random", "metis"])
def test_parts_are_one_process(tmp_path: Path, method: str, symmetric: bool) -> None:
    if method == "metis":
        pytest.importorskip("pymetis")
    write(tmp_path / "p", method, symmetric, torch.float64)
    for place, layer in enumerate(LAYERS):
        work = partial(learnt, whole=net(layer, constant=place % 2 == 0))
        ((output, gradients, _, loss, accuracy),) = on_threads(tmp_path / "p", 1, work)
        for size in (2, 4):
            found = on_threads(tmp_path / "p", size, work)
            torch.testing.assert_close(found[0][0], output, rtol=0, atol=1e-10)
            samples = [one[2] for one in found]
            for mine, whole in zip(weighted([one[1] for one in found], samples), gradients, strict=True):
                torch.testing.assert_close(mine, whole, rtol=0, atol=1e-10, msg=f"{layer} on {size}")
            mean = sum(one[3] * one[2] for one in found) / sum(samples)
            torch.testing.assert_close(mean, loss, rtol=0, atol=1e-10)
            assert all(one[4] == accuracy for one in found)


def test_parts_are_one_process_in_float32(tmp_path: Path) -> None:
    write(tmp_path / "p", "ne", False, torch.float32)
    for place, layer in enumerate(LAYERS):
        work = partial(learnt, whole=net(layer, constant=place % 2 == 0).float())
        ((output, gradients, *_),) = on_threads(tmp_path / "p", 1, work)
        found = on_threads(tmp_path / "p", 3, work)
        torch.testing.assert_close(found[0][0], output, rtol=1e-5, atol=1e-5)
        for mine, whole in zip(weighted([e[1] for e in found], [e[2] for e in found]), gradients, strict=True):
            torch.testing.assert_close(mine, whole, rtol=1e-5, atol=1e-5, msg=f"{layer}")
