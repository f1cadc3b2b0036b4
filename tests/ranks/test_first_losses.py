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


def padded(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(x, y, ignore_index=0)


CASES: dict[str, tuple[Loss, str]] = {
    "padding": (padded, "session.weighted((y != 0).sum())"),
    "classes": (lambda x, y: F.cross_entropy(x, y, weight=WEIGHT), "session.weighted(weight[y].sum())"),
    "sum": (lambda x, y: F.cross_entropy(x, y, reduction="sum"), "session.summed()"),
    "mean": (F.cross_entropy, ""),
    "mean of a sum": (lambda x, y: F.cross_entropy(x, y, reduction="sum") / len(x), ""),
}


def trained(loss: Loss, block: Any = None, change: Callable[[Any], Any] = lambda model: model) -> list[str]:
    """What this rank warns of."""
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    with warnings.catch_warnings(record=True) as said, uneven.Session(balance=Moving(), budget=0.9) as session:
        warnings.simplefilter("always")
        model = net()
        model, optimizer = session.setup(model, sgd(model))
        model = change(model)
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
    for name, (loss, words) in CASES.items():
        said = trained(loss)
        assert len(said) == (1 if words and me.rank == 0 else 0), (name, said)
        assert all(words in one for one in said), (name, said)


@ranks(2)
def test_a_count_is_all_that_it_wants(me: RankContext) -> None:
    assert not trained(padded, lambda session, y: session.weighted((y != 0).sum()))
    assert not trained(CASES["sum"][0], lambda session, y: session.summed())


@ranks(2)
def test_the_look_at_a_loss_and_compiled_models(me: RankContext) -> None:
    """A loss outside of what is compiled is seen; one inside is not, and trains as before."""

    def compiled(model: Any) -> Any:
        return torch.compile(model, backend="eager")

    assert len(trained(padded, change=compiled)) == (me.rank == 0)
    trained(torch.compile(padded, backend="aot_eager", fullgraph=True))


def test_one_worker_alone_is_told_nothing() -> None:
    assert not trained(padded)
