"""Losses that are no mean over samples: ``loss_mean`` and ``loss_sum`` give the weights of one process."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from session_parts import Moving, N, X, assert_same, net, sgd, tensors
from torch import nn
from torch.distributed import barrier
from torch.utils.data import TensorDataset

import uneven
from brought import brought
from uneven.errors import ConfigError, TrainingError
from uneven.journal import read
from uneven.journal.report.pure.chart_series import run_data
from uneven.policy.samples.order import epoch_order
from uneven.testing.ranks import RankContext, ranks

CLASSES = torch.tensor([0.2, 1.0, 3.0], dtype=torch.float64)


def labels() -> TensorDataset:
    """Some of them are padding."""
    x, y = tensors(torch.float64)
    y[torch.rand(N, generator=torch.Generator().manual_seed(4)) < 0.4] = -100
    return TensorDataset(x, y)


def padded(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(x, y, ignore_index=-100)


def by_class(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(x, y.clamp(min=0), weight=CLASSES)


def total(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(x, y, ignore_index=-100, reduction="sum") / 10


Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Block = Callable[[uneven.Session, torch.Tensor], Any]

CASES: dict[str, tuple[Loss, Block]] = {
    "padding": (padded, lambda session, y: session.loss_mean((y != -100).sum())),
    "classes": (by_class, lambda session, y: session.loss_mean(CLASSES[y.clamp(min=0)].sum())),
    "sum": (total, lambda session, y: session.loss_sum()),
}


def unions(epochs: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    x, y = labels().tensors
    for epoch in range(epochs):
        for part in torch.from_numpy(epoch_order(length=N, seed=0, epoch=epoch)).split(X):
            yield x[part], y[part]


def alone(loss: Loss, epochs: int, every: int = 1) -> nn.Module:
    """One process; so many passes for a step."""
    model = net().double()
    optimizer = sgd(model)
    for number, (x, y) in enumerate(unions(epochs), 1):
        (loss(model(x), y) / every).backward()
        if number % every == 0:
            optimizer.step()
            optimizer.zero_grad()
    return model


def started(unused: bool = False, **settings: Any) -> tuple[uneven.Session, nn.Module, torch.optim.Optimizer, Any]:
    session = uneven.Session(**settings)
    model = net().double()
    session.setup(model, optimizer := sgd(model), find_unused_parameters=unused)
    return session, model, optimizer, session.loader(labels(), X)


@ranks(3)
def test_each_loss_trains_as_one_process_would(me: RankContext) -> None:
    for loss, block in CASES.values():
        session, model, optimizer, loader = started(balance=Moving())
        for _ in range(2):  # in their last part some workers only take part
            for x, y in loader:
                with block(session, y):
                    loss(model(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()
        assert_same(model, alone(loss, 2), 1e-12)
        session.close()


@ranks(3)
def test_passes_that_add_up_count_each_by_its_own(me: RankContext) -> None:
    session, model, optimizer, loader = started(balance="static:shares=6/2/4")
    for number, (x, y) in enumerate(chain(loader, loader), 1):
        step = number % 2 == 0
        with nullcontext() if step else session.no_sync():
            with session.loss_mean(CLASSES[y.clamp(min=0)].sum()):
                loss = by_class(model(x), y) / 2
            loss.backward()  # the backward pass may follow
        if step:
            optimizer.step()
            optimizer.zero_grad()
    assert_same(model, alone(by_class, 2, every=2), 1e-12)
    session.close()


@ranks(3)
def test_a_sum_adds_up_over_the_passes_of_a_step(me: RankContext) -> None:
    session, model, optimizer, loader = started(balance="static:shares=6/2/4")
    theirs = net().double()
    by = sgd(theirs)
    for (x, y), (union_x, union_y) in zip(chain(loader, loader), unions(2), strict=True):
        with session.loss_sum():
            total(model(x), y).backward()
            total(model(x + 0.3), y).backward()
        total(theirs(union_x), union_y).backward()
        total(theirs(union_x + 0.3), union_y).backward()
        for one in (optimizer, by):
            one.step()
            one.zero_grad()
    assert_same(model, theirs, 1e-12)
    session.close()


@ranks(3)
def test_means_are_over_all_workers(me: RankContext, tmp_path: Path) -> None:
    session, model, optimizer, loader = started(balance="static:shares=6/2/4", run_dir=tmp_path)
    assert session.mean(float(me.rank)) == 1.0  # outside of a step each counts once
    assert session.mean(me.rank, weight=me.rank) == 5 / 3
    assert math.isnan(session.mean(1.0, weight=0.0))
    apart = session.mean(torch.tensor([float(me.rank), math.nan if me.rank == 2 else 0.0]), weight=2 - me.rank)
    torch.testing.assert_close(apart, torch.tensor([1 / 3, 0.0]))
    assert session.mean(torch.tensor(me.rank), weight=float(me.rank < 2)) == 0.5
    assert session.mean(torch.tensor(me.rank < 2)).item() == pytest.approx(2 / 3)
    for (x, y), (union_x, union_y) in zip(loader, unions(1), strict=True):
        whole = padded(model(union_x), union_y).item()
        with session.loss_mean((y != -100).sum()):
            loss = padded(model(x), y)
            loss.backward()
        session.log(loss=loss.item())
        assert session.mean(loss.item()) == pytest.approx(whole, abs=1e-12)
        session.log(whole=whole)
        optimizer.step()
        optimizer.zero_grad()
    session.close()
    barrier()
    scalars = run_data(read(Path(tmp_path))).scalars
    assert [row.value for row in scalars["loss"]] == pytest.approx([row.value for row in scalars["whole"]], abs=1e-12)
    barrier()


@ranks(2)
def test_what_cannot_be_counted_is_refused(me: RankContext) -> None:
    session, model, _, loader = started()
    for wrong in (-1.0, math.nan, math.inf):
        with pytest.raises(ConfigError, match=r"give the divisor of the mean"):
            session.loss_mean(wrong)
    with pytest.raises(TrainingError, match="no forward pass of the model"), session.loss_mean(1):
        pass
    with pytest.raises(TrainingError, match="inside of another"), session.loss_mean(1), session.loss_sum():
        pass
    batches = iter(loader)
    x = next(batches)[0]
    with pytest.raises(TrainingError, match="add up to 0"), session.loss_mean(0):
        model(x).sum().backward()

    def two_batches() -> None:
        with session.loss_mean(1):
            model(x)
            model(next(batches)[0])

    with pytest.raises(TrainingError, match="iterations 0 and 1 in one block"):
        two_batches()
    session.close()

    session, model, _, loader = started(unused=True)
    with session.loss_sum():
        model(x := next(iter(loader))[0]).sum().backward()
        with pytest.raises(TrainingError, match=r"Add up the losses and call backward once"):
            model(x).sum().backward()
    session.close()

    session, *_ = started(sync="local:every=2")
    with pytest.raises(ConfigError, match=r"session\.loss_sum under sync = LocalSGD"):
        session.loss_sum()
    session.close()


def test_alone_all_is_as_it_is() -> None:
    session = uneven.Session()
    with pytest.raises(ConfigError, match=r"session\.loss_mean comes after session\.setup"):
        session.loss_mean(1)
    with pytest.raises(ConfigError, match=r"come after session\.setup"):
        session.mean(1.0)
    session.close()
    session, model, optimizer, loader = started()
    assert math.isnan(session.mean(torch.tensor(1), weight=0.0))
    with pytest.raises(ConfigError, match=r"session\.mean of a tensor of type torch\.complex64"):
        session.mean(torch.tensor(1j))
    for x, y in loader:
        with session.loss_mean((y != -100).sum()):
            padded(model(x), y).backward()
        assert session.mean(3.0) == 3.0
        optimizer.step()
        optimizer.zero_grad()
    assert_same(model, alone(padded, 1), 1e-12)
    session.close()


def of_all_on_the_page() -> Any:
    """As docs/how-to/losses.md prints it."""
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "losses.md").read_text()
    found: dict[str, Any] = {"torch": torch, "dist": torch.distributed}
    exec(page[page.index("def of_all") :].split("\n\n\n")[0], found)
    return found["of_all"]


def contrastive(model: nn.Module, x: torch.Tensor, gather: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Two views of each sample, each of which is to find its other one among all."""
    a, b = gather(F.normalize(model(x))), gather(F.normalize(model(x + 0.3)))
    return F.cross_entropy(a @ b.T / 0.1, torch.arange(len(a)))


@brought("losses", "DDP", "a contrastive loss over the global batch (CLIP, SimCLR), embeddings gathered with gradients")
@ranks(3)
def test_a_contrastive_loss_over_the_global_batch(me: RankContext) -> None:
    of_all = of_all_on_the_page()
    for balance in (Moving(), "static:shares=9/2/1"):
        theirs = net().double()
        by = sgd(theirs)
        session, model, optimizer, loader = started(balance=balance)
        for (x, _), (union, _) in zip(chain(loader, loader), unions(2), strict=True):
            with session.loss_sum():
                loss = contrastive(model, x, partial(of_all, session))
                loss.backward()
            whole = contrastive(theirs, union, lambda z: z)
            whole.backward()
            torch.testing.assert_close(loss, whole, rtol=1e-10, atol=1e-10)
            for one in (optimizer, by):
                one.step()
                one.zero_grad()
        assert_same(model, theirs, 1e-12)
        session.close()
