"""What the graph of a loss says: a mean over samples, or something else, or nothing that can be seen."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from uneven.run.gradients.first_losses import complaint

B, T, CLASSES = 8, 6, 7
PAD = -100

torch.manual_seed(3)
LAYER = nn.Linear(5, CLASSES)
Y = torch.randint(0, CLASSES, (B,))
WEIGHT = torch.rand(CLASSES)
TOKENS = torch.randint(0, CLASSES, (B, T))
SHIFTED = torch.where(torch.arange(T) == T - 1, PAD, TOKENS)  # each text lacks its last target
PADDED = torch.where(torch.arange(T) >= torch.arange(1, B + 1)[:, None], PAD, TOKENS)


def scores() -> Tensor:
    return LAYER(torch.ones(B, 5))


def texts() -> Tensor:
    return LAYER(torch.ones(B, T, 5))


def each() -> Tensor:
    return F.cross_entropy(scores(), Y, reduction="none")


def flat(y: Tensor) -> Tensor:
    return F.cross_entropy(texts().flatten(0, 1), y.flatten())


SEEN: dict[str, tuple[Callable[[], Tensor], str]] = {
    "classes": (lambda: F.cross_entropy(scores(), Y, weight=WEIGHT), r"weight\[y\].sum\(\)"),
    "classes, smoothed": (lambda: F.cross_entropy(scores(), Y, weight=WEIGHT, label_smoothing=0.1), r"weight\[y\]"),
    "a class left out": (lambda: F.cross_entropy(scores(), Y, ignore_index=int(Y[0])), rf"y != {Y[0]}\).sum\(\)"),
    "both": (lambda: F.cross_entropy(texts().transpose(1, 2), PADDED, weight=WEIGHT), r"weight\[y\[y != -100\]\]"),
    "padding": (lambda: flat(PADDED), r"\(y != -100\).sum\(\)"),
    "padding, and a penalty": (lambda: 0.5 * flat(PADDED) + LAYER.weight.pow(2).sum(), r"\(y != -100\).sum\(\)"),
    "a sum": (lambda: F.cross_entropy(scores(), Y, reduction="sum"), r"nll_loss\(reduction='sum'\) .*loss_sum\(\)"),
    "a scaled sum": (lambda: 1024 * F.mse_loss(scores(), WEIGHT.expand(B, -1), reduction="sum"), "mse_loss"),
    "one of two": (lambda: each().mean() + F.smooth_l1_loss(scores(), scores(), reduction="sum"), "smooth_l1_loss"),
    "a sum by hand": (lambda: each().sum(), "the loss is a sum"),
    "a sum of distances": (lambda: F.l1_loss(scores(), torch.zeros(B, CLASSES), reduction="sum"), "the loss is a sum"),
    "a divergence": (lambda: F.kl_div(scores(), torch.rand(B, CLASSES), reduction="sum"), "the loss is a sum"),
}  # fmt: skip

QUIET: dict[str, Callable[[], Tensor]] = {
    "a mean": lambda: F.cross_entropy(scores(), Y),
    "equal weights": lambda: F.cross_entropy(scores(), Y, weight=torch.full((CLASSES,), 2.0)),
    "probabilities": lambda: F.cross_entropy(scores(), torch.rand(B, CLASSES), weight=WEIGHT),
    "all tokens": lambda: flat(TOKENS),
    "as many tokens in each text": lambda: flat(SHIFTED),
    "the same, time first": lambda: F.cross_entropy(texts().transpose(0, 1).flatten(0, 1), SHIFTED.T.flatten()),
    "one text": lambda: F.cross_entropy(texts()[:1].flatten(0, 1), PADDED[:1].flatten()),
    "a sum, divided": lambda: F.cross_entropy(scores(), Y, reduction="sum") / B,
    "a sum, multiplied": lambda: F.cross_entropy(scores(), Y, reduction="sum") * (1 / B),
    "a sum of parts": lambda: (each() / B).sum(),
    "a sum of weighted parts": lambda: (each() * torch.softmax(scores()[:, 0], 0)).sum(),
    "a sum in each sample": lambda: F.mse_loss(scores(), WEIGHT.expand(B, -1), reduction="none").sum(1).mean(),
    "a sum of means over samples": lambda: scores()[:, :T].square().mean(0).sum(),
    "several losses": lambda: torch.stack([each().mean()] * B).sum(),
    "batchmean": lambda: F.kl_div(scores(), torch.rand(B, CLASSES), reduction="batchmean"),
    "weights of elements": lambda: F.binary_cross_entropy_with_logits(scores(), scores(), weight=WEIGHT),
    "a penalty": lambda: each().mean() + LAYER.weight.abs().sum(),
    "used up": lambda: used_up(),
    "a leaf": lambda: torch.ones(1, requires_grad=True),
}  # fmt: skip


def used_up() -> Tensor:
    loss = flat(PADDED)
    loss.backward()
    return loss


@pytest.mark.parametrize("kind", SEEN)
def test_what_is_not_a_mean_over_samples(kind: str) -> None:
    loss, words = SEEN[kind]
    text = complaint([loss()], {B, T, 5})
    assert re.search(words, text), text


@pytest.mark.parametrize("kind", QUIET)
def test_a_mean_over_samples_and_what_cannot_be_told_from_one(kind: str) -> None:
    assert complaint([QUIET[kind]()], {1, T} if kind == "one text" else {B, T, 5}) == ""
