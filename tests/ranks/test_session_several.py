"""Several sessions in one process, one after another or by turns, as notebooks and adversarial trainings have them."""

from __future__ import annotations

import gc

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from session_parts import Moving, X, assert_same, batches, net, tensors
from torch import nn
from torch.utils.data import TensorDataset

import uneven
from uneven.errors import ConfigError
from uneven.testing.ranks import RankContext, ranks


def epoch(session: uneven.Session, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for x, y in session.loader(TensorDataset(*tensors()), X):
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()


@ranks(2, join=False)
def test_a_cell_that_is_run_again(me: RankContext) -> None:
    """With the same model and optimizer; nothing of the session before is left on them."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for sync in ("bsp", "local:every=1", "bsp"):
        with uneven.Session(sync=sync, balance="even") as session:
            session.setup(model, optimizer)
            epoch(session, model, optimizer)
        assert not optimizer._optimizer_step_pre_hooks
    assert_same(model, three_first_epochs())


def step(model: nn.Module) -> None:
    """What plain SGD does."""
    for one in model.parameters():
        if one.grad is not None:
            one.data -= 0.1 * one.grad
            one.grad = None


def three_first_epochs() -> nn.Module:
    model = net()
    for _ in range(3):  # each session begins with the first
        for x, y in batches(1):
            F.cross_entropy(model(x), y).backward()
            step(model)
    return model


@pytest.mark.parametrize("sync", ["bsp", "local:every=2"])
@ranks(2, join=False)
def test_a_model_in_an_open_session_is_refused(me: RankContext, sync: str) -> None:
    model = net()
    first = uneven.Session(sync=sync, balance="even")
    first.setup(model)
    for part in (model, model[0], nn.Sequential(model, nn.Linear(3, 3))):
        second = uneven.Session(sync=sync, balance="even")
        with second, pytest.raises(ConfigError, match=r"0.weight belongs to a session that is still open.*close"):
            second.setup(part)
    first.close()
    with uneven.Session(sync=sync, balance="even") as second:
        second.setup(model)


def dropped(sync: str, part: nn.Module) -> None:
    uneven.Session(sync=sync, balance="even").setup(nn.Sequential(part, nn.Linear(3, 3)))


@pytest.mark.parametrize("sync", ["bsp", "local:every=2"])
@ranks(2, join=False)
def test_a_session_that_nobody_has_any_more_is_none(me: RankContext, sync: str) -> None:
    model = net()
    dropped(sync, model)
    with uneven.Session(sync=sync, balance="even") as session:
        session.setup(model)


@ranks(2, join=False)
def test_a_dropped_session_ends_on_all_ranks_whenever_each_collects_garbage(me: RankContext) -> None:
    model = net()
    dropped("bsp", model)
    if me.rank == 1:
        gc.collect()
        assert not dist.is_initialized()
    with uneven.Session(balance="even") as session:
        session.setup(model)


@pytest.mark.parametrize("sync", ["bsp", "local:every=1"])
@ranks(2, join=False)
def test_two_sessions_by_turns_each_with_a_loader(me: RankContext, sync: str) -> None:
    kind = Moving if sync == "bsp" else lambda: "even"
    with uneven.Session(balance=kind(), sync=sync) as one, uneven.Session(balance=kind(), sync=sync) as two:
        models = [net(), net()]
        models[1][2].requires_grad_(False)
        optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
        loaders = []
        for session, model, optimizer in zip((one, two), models, optimizers, strict=True):
            session.setup(model, optimizer)
            loaders.append(session.loader(TensorDataset(*tensors()), X))
        for _ in range(2):
            for pair in zip(*loaders, strict=True):
                for model, optimizer, (x, y) in zip(models, optimizers, pair, strict=True):
                    F.cross_entropy(model(x), y).backward()
                    optimizer.step()
                    optimizer.zero_grad()
    theirs = [net(), net()]
    theirs[1][2].requires_grad_(False)
    for ours, model in zip(models, theirs, strict=True):
        for x, y in batches(2):
            F.cross_entropy(model(x), y).backward()
            step(model)
        assert_same(ours, model)


@pytest.mark.parametrize("sync", ["bsp", "local:every=2", "asp"])
@ranks(2, join=False)
def test_batches_of_another_session_are_refused(me: RankContext, sync: str) -> None:
    """Two models by two sessions on one loader: the second model's weights would be those of no batch."""
    with uneven.Session(sync=sync, balance="even") as one, uneven.Session(sync=sync, balance="even") as two:
        first, second = one.setup(net()), two.setup(nn.Linear(3, 3))
        second(torch.zeros(1, 3))  # before the loop, as when something is tried out
        for x, _ in one.loader(TensorDataset(*tensors()), X):
            with torch.no_grad():
                second(first(x))
            with pytest.raises(ConfigError, match=r"put both models into one nn\.Module"):
                second(first(x))
        second(torch.zeros(1, 3))  # and after it


class Both(nn.Module):
    """Makers of samples and their judge, in one module for one session."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.maker, self.judge = nn.Linear(5, 5), nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x: torch.Tensor, made: bool, apart: bool = False) -> torch.Tensor:
        x = self.maker(x) if made else x
        return self.judge(x.detach() if apart else x)


def play(both: nn.Module, x: torch.Tensor, judges: torch.optim.Optimizer, makers: torch.optim.Optimizer) -> None:
    both.zero_grad()
    real, made = both(x, made=False), both(x.flip(1), made=True, apart=True)
    (F.softplus(-real).mean() + F.softplus(made).mean()).backward()
    judges.step()
    both.zero_grad()
    F.softplus(-both(x.flip(1), made=True)).mean().backward()
    makers.step()


@ranks(2)
def test_two_models_in_one_module_against_each_other(me: RankContext) -> None:
    def optimizers(both: Both) -> tuple[torch.optim.Optimizer, torch.optim.Optimizer]:
        return torch.optim.SGD(both.judge.parameters(), lr=0.1), torch.optim.SGD(both.maker.parameters(), lr=0.1)

    with uneven.Session(balance=Moving()) as session:
        both = Both()
        _, judges, makers = session.setup(both, *optimizers(both), find_unused_parameters=True)
        for x, _ in session.loader(TensorDataset(*tensors()), X):
            play(both, x, judges, makers)
    theirs = Both()
    pair = optimizers(theirs)
    for x, _ in batches(1):
        play(theirs, x, *pair)
    assert_same(both, theirs)
