"""Losses and accuracies over a cut graph: torch's own on one process, and that of one process on several."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from threaded_graphs import features, on_threads, some_graph, weighted
from torch import Tensor, nn

from brought import brought, refusal
from uneven import graph
from uneven.graph.graph_losses import SplitLoss

VERTICES, WIDTH, CLASSES = 40, 5, 3
DRAW = torch.Generator().manual_seed(4)
CLASS = torch.arange(VERTICES) * CLASSES // VERTICES  # parts have unlike labels, as vertices near each other are alike
SOME = CLASS.masked_fill(torch.rand(VERTICES, generator=DRAW) < 0.4, -1)
LEFT = torch.where(CLASS > 0, CLASS, -100)
REAL = torch.randn(VERTICES, CLASSES, generator=DRAW, dtype=torch.float64)
BITS = (REAL > 0.3).double()
SHARE = REAL.softmax(1)
SIGN = BITS * 2 - 1
HEAVY = torch.tensor([1.0, 9.0, 0.0], dtype=torch.float64)


class Focal(nn.Module):
    """As scripts write it, with the reduction of torch's losses."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        self.reduction = reduction

    def forward(self, output: Tensor, y: Tensor) -> Tensor:
        each = F.cross_entropy(output, y, reduction="none")
        each = (1 - (-each).exp()) ** 2 * each
        return each.mean() if self.reduction == "mean" else each.sum() if self.reduction == "sum" else each


def by_positives(output: Tensor, y: Tensor, reduction: str) -> Tensor:
    each = F.binary_cross_entropy_with_logits(output, y, reduction="none").sum(1)
    return each.sum() if reduction == "sum" else each.sum() / y.sum()


def rooted_square(output: Tensor, y: Tensor, reduction: str = "mean") -> Tensor:
    return F.mse_loss(output, y, reduction=reduction).sqrt()


def over_outputs(output: Tensor, y: Tensor, reduction: str = "mean") -> Tensor:
    total = (output - y).square().sum()
    return total if reduction == "sum" else total / output.square().sum()


LOSSES: dict[str, tuple[Any, Tensor]] = {
    "`F.cross_entropy`": (F.cross_entropy, CLASS),
    "`cross_entropy(ignore_index=-1)`": (partial(F.cross_entropy, ignore_index=-1), SOME),
    "`cross_entropy`, one class at its default `ignore_index`": (F.cross_entropy, LEFT),
    "`cross_entropy(weight=[1, 9, 0])`": (partial(F.cross_entropy, weight=HEAVY), CLASS),
    "`cross_entropy(label_smoothing=0.1, weight=…, ignore_index=-1)`": (
        partial(F.cross_entropy, weight=HEAVY, label_smoothing=0.1, ignore_index=-1), SOME),
    "`cross_entropy` of class probabilities, with weights": (partial(F.cross_entropy, weight=HEAVY), SHARE),
    "`cross_entropy(reduction='sum')`": (partial(F.cross_entropy, reduction="sum"), CLASS),
    "`nn.CrossEntropyLoss(weight=…, ignore_index=-1)`": (nn.CrossEntropyLoss(weight=HEAVY, ignore_index=-1), SOME),
    "`nn.CrossEntropyLoss(reduction='sum')`": (nn.CrossEntropyLoss(reduction="sum"), CLASS),
    "`nll_loss(weight=…)`": (partial(F.nll_loss, weight=HEAVY), CLASS),
    "`multi_margin_loss(weight=…)`": (partial(F.multi_margin_loss, weight=HEAVY), CLASS),
    "`binary_cross_entropy_with_logits` of several labels, `pos_weight`": (
        partial(F.binary_cross_entropy_with_logits, pos_weight=HEAVY), BITS),
    "`nn.BCEWithLogitsLoss(weight=…)`": (nn.BCEWithLogitsLoss(weight=HEAVY), BITS),
    "`mse_loss`": (F.mse_loss, REAL),
    "`nn.L1Loss`": (nn.L1Loss(), REAL),
    "`huber_loss(delta=0.5)`": (partial(F.huber_loss, delta=0.5), REAL),
    "`smooth_l1_loss`, labels `[N, 1]` for outputs `[N, C]`": (F.smooth_l1_loss, REAL[:, :1]),
    "`kl_div(reduction='batchmean')`": (partial(F.kl_div, reduction="batchmean"), SHARE),
    "`kl_div`": (F.kl_div, SHARE),
    "`nn.MultiLabelSoftMarginLoss`": (nn.MultiLabelSoftMarginLoss(), BITS),
    "`multilabel_margin_loss` without labels": (F.multilabel_margin_loss, torch.full_like(BITS, -1).long()),
    "`soft_margin_loss`": (F.soft_margin_loss, SIGN),
    "`hinge_embedding_loss`": (F.hinge_embedding_loss, SIGN),
    "`poisson_nll_loss`": (F.poisson_nll_loss, BITS),
    "a custom module with `reduction`": (Focal(), CLASS),
    "a function that divides by its positives": (partial(by_positives, reduction="mean"), BITS),
}  # fmt: skip


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("losses") / "p"
    tensors = {"x": features(VERTICES, WIDTH), "at": torch.arange(VERTICES), "mask": torch.arange(VERTICES) % 4 != 0}
    graph.partition(some_graph(VERTICES, 90), VERTICES, path=path, shares=(5, 3, 1), beta=2.0, tensors=tensors)
    return path


WEIGHT = features(WIDTH, CLASSES, 7)


def learnt(g: graph.PartedGraph, criterion: Any, every: Tensor) -> tuple[Tensor, Tensor, int]:
    weight = WEIGHT.clone().requires_grad_()
    loss = g.loss(criterion, g.tensor("x") @ weight, every[g.tensor("at")], g.tensor("mask")[:, None])
    loss.backward()
    assert weight.grad is not None
    return loss.detach(), weight.grad, g.samples


@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides", "ignore:Using a target size")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=brought("losses", "torch", f"`g.loss`: {name}")) for name in LOSSES]
)
def test_a_loss_is_that_of_torch(cut: Path, name: str) -> None:
    criterion, y = LOSSES[name]
    weight, mask = WEIGHT.clone().requires_grad_(), torch.arange(VERTICES) % 4 != 0
    wanted = criterion((features(VERTICES, WIDTH) @ weight)[mask], y[mask])
    (gradient,) = torch.autograd.grad(wanted, weight)
    for size, exchange in ((1, "exact"), (2, "exact"), (3, "exact"), (3, "cd-0")):
        found = on_threads(cut, size, partial(learnt, criterion=criterion, every=y), exchange=exchange)
        samples = [one[2] for one in found]
        mean = sum(one[0] * one[2] for one in found) / sum(samples)
        torch.testing.assert_close(mean, wanted.detach(), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(weighted([[one[1]] for one in found], samples)[0], gradient, rtol=1e-12, atol=1e-12)


def column(criterion: Callable[..., Tensor], output: Tensor, y: Tensor) -> Callable[[graph.PartedGraph], Tensor]:
    return lambda g: g.loss(criterion, output[: g.rows], y[: g.rows])


@pytest.mark.parametrize(
    ("size", "criterion", "y", "match"),
    [
        pytest.param(size, *given, marks=brought("losses", "torch", f"`g.loss`: {what}", refused=True))
        for what, size, *given in [
            (
                "one loss for each vertex, `reduction='none'`",
                1,
                partial(F.mse_loss, reduction="none"),
                REAL,
                "leave th",
            ),
            ("`size_average=False`", 1, partial(F.mse_loss, size_average=False), REAL, "size_average= or reduce="),
            ("`mse_loss` of outputs `[N, C]` and labels `[N]`", 1, F.mse_loss, REAL[:, 0], r"y\[:, None\]"),
            ("`cross_entropy` of labels `[N, 1]`", 1, F.cross_entropy, CLASS[:, None], r"y\[:, 0\]"),
            ("`cross_entropy` of classes as floats", 1, F.cross_entropy, CLASS.double(), r"y\.long\(\)"),
            ("labels of another worker's part", 1, F.cross_entropy, CLASS[1:], "this part, 40 rows"),
            ("a function without `reduction`, on several workers", 2, lambda a, b: F.mse_loss(a, b), REAL, "partial"),
            ("`criterion.forward`, on several workers", 2, nn.MSELoss().forward, REAL, "forward does not take"),
            ("a root of a mean, on several workers", 2, rooted_square, BITS, "is not a sum over vertices"),
            ("a mean over a number that outputs determine, on several workers", 2, over_outputs, BITS, "labels alone"),
        ]
    ],
)
def test_a_loss_without_shares_is_refused(cut: Path, size: int, criterion: Any, y: Tensor, match: str) -> None:
    with refusal(match):
        on_threads(cut, size, column(criterion, REAL, y))


def test_a_worker_without_losses_is_counted() -> None:
    """Where all losses are 0, sum over mean says nothing about what the mean divides by."""
    for criterion, y, count in (
        (F.mse_loss, REAL, VERTICES * CLASSES),
        (partial(F.multi_margin_loss, weight=torch.zeros(CLASSES, dtype=torch.float64)), CLASS, VERTICES),
        (partial(F.cross_entropy, ignore_index=1), torch.ones_like(CLASS), 0),
        (F.mse_loss, REAL.bfloat16(), VERTICES * CLASSES),
    ):
        assert SplitLoss(criterion).divisor(y if y.is_floating_point() else REAL, y).item() == pytest.approx(count)


@brought("losses", "PyG", "`g.accuracy`: labels and masks `[N, 1]`")
def test_accuracy_of_columns(cut: Path) -> None:
    right = (REAL.argmax(1) == CLASS)[torch.arange(VERTICES) % 4 != 0].double().mean().item()

    def found(g: graph.PartedGraph) -> float:
        at = g.tensor("at")
        return g.accuracy(REAL[at], CLASS[at, None], g.tensor("mask")[:, None])

    for size in (1, 3):
        assert on_threads(cut, size, found) == [pytest.approx(right, abs=1e-12)] * size
    whole = graph.load(cut, rank=0, size=1)
    mask = whole.tensor("mask")
    for given in (mask.numpy(), mask.tolist()):
        assert whole.loss(F.cross_entropy, REAL, CLASS, given) == whole.loss(F.cross_entropy, REAL, CLASS, mask)


@pytest.mark.parametrize(
    ("output", "y", "mask", "match"),
    [
        pytest.param(*given, marks=brought("losses", "PyG", f"`g.accuracy`: {what}", refused=True))
        for what, *given in [
            ("one logit for each vertex", REAL[:, :1], CLASS, None, r"torch\.cat\(\[-z, z\], 1\)"),
            ("several labels for each vertex", REAL, BITS, None, "one label per row"),
            ("masks of integers", REAL, CLASS, CLASS, r"mask\.bool\(\)"),
            ("masks of several splits", REAL, CLASS, BITS.bool(), r"mask\[:, 0\]"),
            ("indices of a split, as OGB's", REAL, CLASS, CLASS[:9], r"index_fill\(0, at, 1\)"),
            ("an empty mask", REAL, CLASS, CLASS > 9, "empty on all workers"),
        ]
    ],
)
def test_an_accuracy_that_has_no_meaning_is_refused(
    cut: Path, output: Tensor, y: Tensor, mask: Tensor | None, match: str
) -> None:
    g = graph.load(cut, rank=0, size=1)
    with refusal(match):
        g.accuracy(output, y, mask)
