"""Muon makes torch's steps on any shares, with owners that move; matrices of one shape share a call in all tenants."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from workers import CallbackWorker, X, batch, train, vector

from uneven import KFAC, SOAP, Callback, Muon, Session
from uneven.errors import CheckpointError, ConfigError, TrainingError
from uneven.precondition import preconditioner as seam
from uneven.precondition.pure.packing import batches
from uneven.precondition.refresh import Refresh
from uneven.run.lines import Lines
from uneven.testing.callbacks import together

ONE_DRAWS = threading.Lock()  # all threads draw from the same random numbers
PLAIN = {"lr": 0.05, "momentum": 0.0, "weight_decay": 0.1}


def net() -> nn.Module:
    """Wide, tall and square matrices, two of them of one shape; no biases, which another optimizer would step."""
    layers = [nn.Linear(a, b, bias=False) for a, b in pairwise((5, 8, 8, 8, 3))]
    return nn.Sequential(*(part for layer in layers for part in (layer, nn.Tanh()))).double()


def of_torch(steps: int = 12, build: Callable[[], nn.Module] = net, **how: Any) -> Tensor:
    """The weights that torch's optimizer gives in one process."""
    torch.manual_seed(1)
    model = build()
    optimizer = torch.optim.Muon(model.parameters(), lr=PLAIN["lr"], weight_decay=PLAIN["weight_decay"], **how)
    for number in range(steps):
        x, y = batch(number)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return vector(model)


def trained(shares: tuple[int, ...], **how: Any) -> list[Tensor]:
    def use(worker: CallbackWorker) -> Tensor:
        for number in range(12):
            worker.step(*batch(number), shares)
        return vector(worker.model)

    return train(len(shares), net, lambda: Muon(**how), use, **PLAIN)


@pytest.mark.parametrize("shares", [(X,), (9, 3), (7, 5, 0)])
@pytest.mark.parametrize("how", [{}, {"nesterov": False, "adjust_lr_fn": "match_rms_adamw", "momentum": 0.8}])
def test_steps_are_those_of_torch_on_any_shares(shares: tuple[int, ...], how: dict[str, Any]) -> None:
    wanted = of_torch(**how)
    for found in trained(shares, **how):
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6)


def test_a_convolution_is_the_matrix_of_its_merged_axes() -> None:
    class Merged(nn.Module):
        def __init__(self, merged: bool) -> None:
            super().__init__()
            weight = torch.randn(4, 2, 3, 2, dtype=torch.float64)
            self.weight = nn.Parameter(weight.flatten(1) if merged else weight)

        def forward(self, x: Tensor) -> Tensor:
            return F.conv2d(x.repeat(1, 5)[:, :24].view(-1, 2, 3, 4), self.weight.view(4, 2, 3, 2)).flatten(1)

    wanted = of_torch(build=lambda: Merged(True))

    def use(worker: CallbackWorker) -> Tensor:
        for number in range(12):
            worker.step(*batch(number), (X,))
        return vector(worker.model)

    found = train(1, lambda: Merged(False), Muon, use, **PLAIN)[0]
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6)


def test_owners_follow_the_speeds_that_workers_measure_and_momentum_goes_with_them() -> None:
    def use(worker: CallbackWorker) -> tuple[Tensor, Any, Any]:
        part: Any = worker.part
        first = part.owners
        for number in range(12):
            if number == 10:
                part._measured.cost, part._measured.busy_s = 1.0, 1.0 if worker.rank == 0 else 0.01
            worker.step(*batch(number), (6, 6))
        return vector(worker.model), first, part.owners

    wanted = of_torch()
    for found, before, after in train(2, net, Muon, use, **PLAIN):
        assert set(before.values()) == {(0,), (1,)}
        assert set(after.values()) == {(1,)}
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6)


def test_a_checkpoint_continues_with_other_workers() -> None:
    def first(worker: CallbackWorker) -> Any:
        for number in range(5):
            worker.step(*batch(number), (8, 4))
        with pytest.raises(CheckpointError, match="save inside `with session"):
            worker.part.state_dict()
        with worker.part.evaluation_model():
            return copy.deepcopy([worker.part.state_dict(), worker.model.state_dict()])

    saved = train(2, net, Muon, first, **PLAIN)[1]

    def second(worker: CallbackWorker) -> Tensor:
        state, weights = copy.deepcopy(saved)
        worker.model.load_state_dict(weights)
        worker.part.load_state_dict(state)
        for number in range(5, 12):
            worker.step(*batch(number), (5, 4, 3))
        return vector(worker.model)

    for found in train(3, net, Muon, second, **PLAIN):
        torch.testing.assert_close(found, of_torch(), rtol=0, atol=1e-6)


def test_where_workers_may_be_lost_each_has_all_momentum_and_gives_it_to_a_newcomer() -> None:
    def worker_of(lines: Lines) -> CallbackWorker:
        lines.changing = True
        with ONE_DRAWS:
            torch.manual_seed(1)
            model = net()
        return CallbackWorker(lines, model, torch.optim.SGD(model.parameters(), **PLAIN), Muon())

    def first(lines: Lines) -> Any:
        worker = worker_of(lines)
        for number in range(5):
            worker.step(*batch(number), (9, 3))
        return copy.deepcopy([worker.part.state_dict(), worker.model.state_dict()])

    saved, other = together(2, first)
    assert all(torch.equal(saved[1][key], other[1][key]) for key in saved[1])

    def second(lines: Lines) -> Tensor:
        worker = worker_of(lines)
        state, weights = copy.deepcopy(saved)
        worker.model.load_state_dict(weights)
        worker.part.load_state_dict(state)
        for number in range(5, 12):
            worker.step(*batch(number), (5, 4, 3))
        return vector(worker.model)

    for found in together(3, second):
        torch.testing.assert_close(found, of_torch(), rtol=0, atol=1e-6)


def test_each_kind_of_weight_and_optimizer_that_has_no_matrix_step_raises_an_error() -> None:
    def attached(build: Callable[[], nn.Module], **how: float) -> None:
        train(1, build, Muon, lambda worker: None, **{**PLAIN, **how})

    with pytest.raises(ConfigError, match=r"'bias' has shape \(3,\): give it to another optimizer"):
        attached(lambda: nn.Linear(5, 3))
    with pytest.raises(ConfigError, match="Muon has its own momentum"):
        attached(net, momentum=0.9)
    with pytest.raises(ConfigError, match="Muon moves all rows at each step, and '' gives gradients of a few rows"):
        attached(lambda: nn.Embedding(5, 3, sparse=True))
    for how in ({"momentum": 1.0}, {"eps": 0.0}, {"ns_steps": 0}, {"adjust_lr_fn": "moonshot"}):
        with pytest.raises(ConfigError, match=next(iter(how))):
            Muon(**how)  # type: ignore[arg-type]


def test_nan_in_a_gradient_reaches_the_weights() -> None:
    """A direction of before would hide it."""

    def use(worker: CallbackWorker) -> bool:
        worker.step(*batch(0), (X,))
        worker.step(*batch(1), (X,), loss=lambda model, x, y: model(x).sum() * float("nan"))
        return bool(vector(worker.model).isnan().all())

    assert train(1, net, Muon, use, **PLAIN) == [True]


def twins() -> nn.Module:
    """Two layers of each kind, with and without bias."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 1, 5)), nn.Conv2d(1, 3, 1), nn.Conv2d(3, 3, 3, padding=1), nn.Tanh(),
        nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 1, bias=False), nn.Tanh(), nn.Conv2d(3, 3, 1, bias=False),
        nn.Flatten(), nn.Linear(15, 15), nn.Tanh(), nn.Linear(15, 15), nn.Tanh(), nn.Linear(15, 3),
    ).double()  # fmt: skip


@pytest.mark.parametrize(
    "make",
    [
        lambda: KFAC(inv_update_steps=3, damping=0.1),
        lambda: KFAC(inv_update_steps=3, damping=0.1, compute_method="inverse", factor_decay="exp"),
        lambda: SOAP(inv_update_steps=3, eps=0.1),  # smaller ones enlarge the rounding of directions without a gradient
    ],
)
def test_matrices_in_one_call_give_the_results_of_single_calls(
    make: Callable[[], Callback], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []

    def noted(keys: Any, numbers: Any, most: int) -> list[list[int]]:
        found = batches(keys, numbers, most)
        sizes.extend(map(len, found))
        return found

    def use(worker: CallbackWorker) -> Tensor:
        for number in range(7):
            worker.step(*batch(number), (X,))
        return vector(worker.model)

    how = {"momentum": 0.0, "lr": 0.01}
    monkeypatch.setattr(seam, "batches", noted)
    together = train(1, twins, make, use, **how)[0]
    assert max(sizes) > 1
    monkeypatch.setattr(seam, "batches", lambda keys, numbers, most: [[place] for place in range(len(keys))])
    torch.testing.assert_close(together, train(1, twins, make, use, **how)[0], rtol=0, atol=1e-10)


def test_a_refresh_leaves_the_statistics_as_they_are() -> None:
    """Also where a factor is a view of them, as that of a convolution's outputs."""

    def use(worker: CallbackWorker) -> None:
        worker.step(*batch(0), (X,))
        part: Any = worker.part
        before = {unit: kept.clone() for unit, kept in part._kept.items()}
        part._refresh([*before], beside=False)
        assert all(torch.equal(kept, before[unit]) for unit, kept in part._kept.items())

    train(1, twins, lambda: KFAC(compute_method="inverse", factor_decay="exp"), use)


def test_batches_hold_equal_keys_up_to_a_number() -> None:
    assert batches("abab", [4, 9, 4, 9], 8) == [[0, 2], [1], [3]]
    assert batches([], [], 8) == []


def test_one_failed_matrix_of_a_batch_does_not_take_the_others_along() -> None:
    matrices = torch.stack([torch.eye(2), -torch.eye(2), torch.full((2, 2), torch.nan), 4 * torch.eye(2)])

    def decompose(those: list[int]) -> Tensor:
        return torch.linalg.cholesky(matrices[those]).flatten(1)

    found, failed = Refresh([[0, 1, 3], [2]], decompose, due=0, beside=False, cost=1.0).end()
    assert {number: one.tolist() for number, one in found.items()} == {0: [1, 0, 0, 1], 3: [2, 0, 0, 2]}
    assert set(failed) == {1, 2}


def test_an_error_in_the_background_is_raised_at_the_end() -> None:
    def decompose(those: list[int]) -> Tensor:
        raise MemoryError(f"for {those}")

    refresh = Refresh([[0]], decompose, due=0, beside=True, cost=0.0)
    with pytest.raises(MemoryError, match=r"for \[0\]"):
        refresh.end()
    refresh.abandon()


def test_a_fused_optimizer_that_would_unscale_the_directions() -> None:
    scaler = torch.amp.GradScaler("cpu")
    with Session(callbacks=[Muon()]) as session:
        model = nn.Linear(5, 3, bias=False)
        session.setup(model, optimizer := torch.optim.SGD(model.parameters(), lr=0.02, fused=True))
        for x in session.loader(torch.randn(4, 5), 4):
            scaler.scale(model(x).square().mean()).backward()
            with pytest.raises(TrainingError, match="fused=False"):
                scaler.step(optimizer)
