"""Losses that are not means over samples are reported once, and nothing is left of the look at them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from session_parts import Moving, X, net, sgd, tensors
from torch.utils.data import TensorDataset

import uneven
from uneven.testing.ranks import RankContext, ranks

BACKWARD = torch.autograd.backward
WEIGHT = torch.tensor([0.2, 1.0, 3.0])

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Block = Callable[[uneven.Session, torch.Tensor], Any] | None


def padded(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(x, y, ignore_index=0)


def summed(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(x, y, reduction="sum")


CASES: dict[str, tuple[Loss, Block, str]] = {
    "padding": (padded, None, "session.loss_mean((y != 0).sum())"),
    "classes": (lambda x, y: F.cross_entropy(x, y, weight=WEIGHT), None, "session.loss_mean(weight[y].sum())"),
    "sum": (summed, None, "session.loss_sum()"),
    "mean": (F.cross_entropy, None, ""),
    "mean of a sum": (lambda x, y: summed(x, y) / len(x), None, ""),
    "counted": (padded, lambda session, y: session.loss_mean((y != 0).sum()), ""),
    "counted as a sum": (summed, lambda session, y: session.loss_sum(), ""),
}
"""A loss, what its passes are in, and words of the warning."""


def trained(loss: Loss, block: Block = None) -> list[str]:
    """What this rank warns of."""
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    with warnings.catch_warnings(record=True) as said, uneven.Session(balance=Moving(), overhead_budget=0.9) as session:
        warnings.simplefilter("always")
        model = net()
        model, optimizer = session.setup(model, sgd(model))
        loader = session.loader(TensorDataset(*tensors()), X)
        for _ in range(2):
            for x, y in loader:
                with nullcontext() if block is None else block(session, y):
                    scaler.scale(loss(model(x), y)).backward()
                assert torch.autograd.backward is BACKWARD
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
        model(x)  # whose backward pass never comes
    assert torch.autograd.backward is BACKWARD
    return [str(one.message) for one in said if "the loss" in str(one.message)]


@ranks(2)
def test_a_loss_that_is_not_a_mean_over_samples_is_reported_once(me: RankContext) -> None:
    for name, (loss, block, words) in CASES.items():
        said = trained(loss, block)
        assert len(said) == (1 if words and me.rank == 0 else 0), (name, said)
        assert all(words in one for one in said), (name, said)


def test_one_worker_alone_gets_no_warning() -> None:
    assert not trained(padded)
