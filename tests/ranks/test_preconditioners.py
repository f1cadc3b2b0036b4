"""Preconditioners in sessions of real workers: on unequal shares they train as one process on the union batch does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from session_parts import Numbered, X, assert_same, batches, net, sgd
from torch import nn

import uneven
from uneven import Callback
from uneven.errors import CheckpointError
from uneven.testing.callbacks import alone
from uneven.testing.ranks import RankContext, ranks

EPOCHS = 3  # of four iterations, and one that is smaller


def plain(model: nn.Module, part: Callback) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01) if isinstance(part, uneven.SOAP) else sgd(model)


def by_itself(part: Callback) -> nn.Module:
    """One process, with the part but without a session."""
    model = net().double()
    worker = alone(model, plain(model, part), part)
    for x, y in batches(EPOCHS, torch.float64):
        worker.step(x, y)
    return model


def in_session(part: Callback) -> nn.Module:
    session = uneven.Session(callbacks=[part], balance="static:shares=3/1")
    model = net().double()
    model, optimizer = session.setup(model, plain(model, part))
    loader = session.loader(Numbered(), X)
    for _ in range(EPOCHS):
        for x, y, _ in loader:
            F.cross_entropy(model(x.double()), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    with pytest.raises(CheckpointError, match=r"save inside `with session.evaluation_model\(\)"):
        session.state_dict()
    with session.evaluation_model():
        session.evaluate(lambda batch: {"samples": len(batch[0])}, Numbered(), X)
        assert session.state_dict()
    session.close()
    return model


def kfac(share: float | str = 1.0) -> Callback:
    return uneven.KFAC(damping=0.1, kl_clip=0.01, factor_update_steps=2, inv_update_steps=4, grad_worker_fraction=share)


@ranks(2)
def test_muon_on_three_to_one_is_that_of_torch_in_one_process(me: RankContext) -> None:
    def by_axes(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
        weights = list(model.parameters())
        return [one for one in weights if one.ndim == 2], [one for one in weights if one.ndim == 1]

    theirs = net().double()
    matrices, others = by_axes(theirs)
    optimizers = torch.optim.Muon(matrices, lr=0.02), torch.optim.AdamW(others)
    for x, y in batches(EPOCHS, torch.float64):
        F.cross_entropy(theirs(x), y).backward()
        for one in optimizers:
            one.step()
            one.zero_grad()

    session = uneven.Session(callbacks=[uneven.Muon()], balance="static:shares=3/1")
    model = net().double()
    matrices, others = by_axes(model)
    model, *ours = session.setup(model, torch.optim.SGD(matrices, lr=0.02, weight_decay=0.1), torch.optim.AdamW(others))
    loader = session.loader(Numbered(), X)
    for _ in range(EPOCHS):
        for x, y, _ in loader:
            F.cross_entropy(model(x.double()), y).backward()
            for one in ours:
                one.step()
                one.zero_grad()
    session.close()
    assert_same(model, theirs, 1e-6)


@ranks(2)
def test_three_to_one_is_as_one_process(me: RankContext) -> None:
    makers: list[Callable[[], Callback]] = [
        lambda: kfac(1.0),
        lambda: kfac(0.5),
        lambda: kfac("auto"),
        lambda: uneven.SOAP(grad_worker_fraction=0.5, eps=1e-4),
    ]
    for make in makers:
        assert_same(in_session(make()), by_itself(make()))
