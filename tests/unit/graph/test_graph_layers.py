"""Layers of torch between those of a cut graph: right over all parts, or refused by name."""

from __future__ import annotations

import copy
import pickle
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from threaded_graphs import features, on_threads, some_graph, weighted
from torch import Tensor, nn

from brought import brought, refusal
from uneven import graph
from uneven.graph.layers import carry_layers

VERTICES, WIDTH = 40, 4
X = features(VERTICES, WIDTH) * 3.0 + 1e4  # a variance far below the mean


class PyGNorm(nn.Module):
    """As in PyG: torch's layer in a module of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.BatchNorm1d(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.module(x)


class GraphNorm(nn.Module):
    def forward(self, x: Tensor, batch: Tensor | None = None) -> Tensor:
        out = x - x.mean(0)
        return out / out.square().mean(0).sqrt()


class GraphWide(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x - x.mean()) / x.std(correction=0)


class PairNorm(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x = x - x.mean(dim=0, keepdim=True)
        return x / (1e-5 + x.pow(2).sum(-1).mean()).sqrt()


class SizeNorm(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / len(x) ** 0.5


class OwnBatchNorm(nn.BatchNorm1d):
    def forward(self, input: Tensor) -> Tensor:
        return nn.functional.batch_norm(input, None, None, training=True)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x)[0]


class HeteroNorm(nn.Module):
    """As in PyG: its means are made by a layer inside."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Identity()
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        self.mean = self.mean * 0.9 + x.mean(0).detach() * 0.1
        return x - self.inside(x).mean(0)


class Remembers(nn.Module):
    """Keeps its rows for a loss, and has constants of all of them."""

    def forward(self, x: Tensor) -> Tensor:
        self.seen = x
        return x


class PerRow(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self, "encodings"):
            self.encodings = torch.ones_like(x)
        return x + self.encodings


class Noise(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.rand_like(x)


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("layers") / "p"
    tensors = {"x": X, "at": torch.arange(VERTICES)}
    graph.partition(some_graph(VERTICES, 90), VERTICES, path=path, shares=(5, 3, 1), beta=2.0, tensors=tensors)
    return path


def learnt(g: graph.PartedGraph, layer: nn.Module, shape: tuple[int, ...], some: bool) -> Any:
    model = copy.deepcopy(layer).double()
    carry_layers(nn.ModuleDict({"norm": model}), g, alone=g.size == 1)
    back, x = features(VERTICES, WIDTH, 3), g.tensor("x").requires_grad_()
    at = g.tensor("at") if not some else g.tensor("at")[g.tensor("at") % 3 == 0]
    for _ in range(2):
        output = model((x if not some else x[g.tensor("at") % 3 == 0]).view(-1, *shape)).flatten(1)
    ((output * back[at]).sum() / g.exchange.carrier.weight).backward()
    assert x.grad is not None
    kept = model.eval()(x.view(-1, *shape)).flatten(1).detach()
    gradients = [one.grad for one in model.parameters()]
    rows = [g.gather(one) for one in (kept, x.grad * g.exchange.carrier.weight)]
    return rows, gradients, g.samples, [*model.buffers()]


BATCH_NORMS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "`BatchNorm1d`": (nn.BatchNorm1d(WIDTH), (WIDTH,)),
    "`BatchNorm1d(momentum=None)`, a cumulative mean": (nn.BatchNorm1d(WIDTH, momentum=None), (WIDTH,)),
    "`BatchNorm1d(affine=False, track_running_stats=False)`": (
        nn.BatchNorm1d(WIDTH, affine=False, track_running_stats=False), (WIDTH,)),
    "`BatchNorm1d` over `[N, C, L]`": (nn.BatchNorm1d(2), (2, WIDTH // 2)),
    "PyG's `BatchNorm`": (PyGNorm(), (WIDTH,)),
    "`LayerNorm`": (nn.LayerNorm(WIDTH), (WIDTH,)),
}  # fmt: skip


@pytest.mark.parametrize("some", [False, True])
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=brought("graphs", "PyG", f"between layers: {name}")) for name in BATCH_NORMS]
)
def test_a_norm_is_that_of_one_process(cut: Path, name: str, some: bool) -> None:
    work = partial(learnt, layer=BATCH_NORMS[name][0], shape=BATCH_NORMS[name][1], some=some)
    ((rows, gradients, _, buffers),) = on_threads(cut, 1, work)
    for size, exchange in ((2, "exact"), (3, "exact")) if some else ((3, "exact"), (3, "cd-0")):
        found = on_threads(cut, size, work, exchange=exchange)
        if exchange == "exact":
            for mine, whole in zip(found[0][0], rows, strict=True):
                torch.testing.assert_close(mine, whole, rtol=1e-6, atol=1e-6)
            summed = weighted([one[1] for one in found], [one[2] for one in found])
            for mine, whole in zip(summed, gradients, strict=True):
                torch.testing.assert_close(mine, whole, rtol=1e-6, atol=1e-6)
        for each in found:
            torch.testing.assert_close(each[3], buffers, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize(
    ("layer", "what"),
    [
        pytest.param(one, name, marks=brought("graphs", "PyG", f"between layers: {what}", refused=True))
        for what, one, name in [
            ("`GraphNorm`", GraphNorm(), "GraphNorm"),
            ("`LayerNorm(mode='graph')`", GraphWide(), "GraphWide"),
            ("`PairNorm`", PairNorm(), "PairNorm"),
            ("`GraphSizeNorm`", SizeNorm(), "SizeNorm"),
            ("`HeteroBatchNorm`", HeteroNorm(), "HeteroNorm"),
            ("a batch norm with a custom `forward`", OwnBatchNorm(WIDTH), "OwnBatchNorm"),
            ("`nn.MultiheadAttention` over vertices", Attention(), "attention.attention"),
            ("`nn.Softmax(dim=0)`", nn.Softmax(dim=0), "Softmax"),
            ("`nn.LSTM` along vertices", nn.LSTM(WIDTH, WIDTH), "LSTM"),
        ]
    ],
)
def test_a_layer_that_mixes_vertices_is_refused(cut: Path, layer: nn.Module, what: str) -> None:
    def work(g: graph.PartedGraph) -> Any:
        model = nn.ModuleDict({"attention": copy.deepcopy(layer).double()})
        carry_layers(model, g, alone=g.size == 1)
        return model["attention"](g.tensor("x") - 1e4)

    on_threads(cut, 1, work)
    with refusal(r"layer attention.* \(.*\) combines rows of different vertices"):
        on_threads(cut, 2, work)


def test_layers_that_mix_nothing_stay(cut: Path) -> None:
    """Also random ones, and those that call the graph themselves; each is tried once."""

    class Own(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x - g_of[id(self)].total(x.sum(0)) / VERTICES

    g_of: dict[int, graph.PartedGraph] = {}

    def work(g: graph.PartedGraph) -> list[bool]:
        model = nn.Sequential(
            nn.Linear(WIDTH, WIDTH),
            nn.LeakyReLU(0.5, inplace=True),
            nn.AlphaDropout(0.5),
            Noise(),
            nn.GroupNorm(2, WIDTH),
            Remembers(),
            PerRow(),
            Own(),
        ).double()
        g_of[id(model[-1])] = g
        carry_layers(model, g, alone=False)
        x, first = g.tensor("x"), model[:2]
        torch.testing.assert_close(first(x), nn.functional.leaky_relu(model[0](x), 0.5))
        model(x)
        assert len(model[5].seen) == g.rows
        return ["forward" in vars(one) for one in model]

    assert on_threads(cut, 2, work)[0] == [False] * 6 + [True] * 2


@brought("graphs", "PyG", "`nn.Dropout` between layers")
def test_dropout_layers_draw_the_masks_of_the_graph(cut: Path) -> None:
    def work(g: graph.PartedGraph) -> Tensor | None:
        model = nn.Sequential(nn.Dropout(0.4), nn.Dropout(1.0))
        carry_layers(model, g, alone=g.size == 1)
        for one in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):  # noqa: S301
            assert not one(g.tensor("x")).any()
        return g.gather(model[0](g.tensor("x")))

    (whole,) = on_threads(cut, 1, work)
    torch.testing.assert_close(on_threads(cut, 3, work)[0], whole, rtol=0, atol=0)
    assert 0.2 < (whole == 0).double().mean() < 0.6
