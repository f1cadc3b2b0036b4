"""What is left plain or refused, refreshes that fail or run beside, checkpoints, and SOAP."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from workers import CallbackWorker, X, batch, net, train, vector

from uneven import KFAC, SOAP, Callback, Muon
from uneven.errors import CheckpointError, ConfigError, TrainingError
from uneven.policy.core.actions import StepPlan
from uneven.run.lines import Lines, ThreadLines
from uneven.testing.callbacks import together


def trained(shares: tuple[int, ...], part: Callable[[], Callback], steps: int = 12, **how: Any) -> list[Tensor]:
    def use(worker: CallbackWorker) -> Tensor:
        for number in range(steps):
            worker.step(*batch(number), shares)
        return vector(worker.model)

    return train(len(shares), net, part, use, **how)


class Odd(nn.Module):
    """Layers that K-FAC leaves alone, each for a reason of its own, and one that it takes."""

    def __init__(self) -> None:
        super().__init__()
        self.grouped = nn.Conv2d(4, 4, 3, groups=2)
        self.dilated = nn.Conv2d(4, 4, 3, dilation=2)
        self.mirrored = nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect")
        self.uneven = nn.Conv2d(4, 4, 2, padding="same")
        self.lstm = nn.LSTM(4, 4)
        self.tied, self.twin = nn.Linear(4, 4), nn.Linear(4, 4)
        self.twin.weight = self.tied.weight
        self.frozen = nn.Linear(4, 4)
        self.frozen.weight.requires_grad_(False)
        self.norm = nn.LayerNorm(4)
        self.left_out, self.taken = nn.Linear(4, 4), nn.Linear(4, 4)
        self.taken.bias.requires_grad_(False)


def test_layers_that_keep_their_plain_gradient_are_named_with_the_reason() -> None:
    notes, layers, told = train(
        1, Odd, lambda: KFAC(skip_layers=["left"]), lambda w: (w.part.notes, w.part.layers, w.told)
    )[0]
    ((event, text),) = told
    assert event == "plain-gradient"
    assert "KFAC leaves 10 layers their plain gradient: grouped: it has groups=2; " in text
    assert [one.name for one in layers] == ["taken"]
    assert layers[0].item.sides == (4, 4)  # no column of ones for a bias that is frozen
    reasons = {
        "grouped": "groups=2",
        "dilated": "dilation=(2, 2)",
        "mirrored": "padding_mode='reflect'",
        "uneven": "even kernel",
        "lstm": "LSTM is not a Linear or Conv2d",
        "tied": "tied",
        "twin": "tied",
        "frozen": "frozen",
        "norm": "LayerNorm is not a Linear or Conv2d",
        "left_out": "skipped by skip_layers",
    }
    for name, why in reasons.items():
        assert why in notes[name]
    with pytest.raises(
        ConfigError, match="finds no layer to precondition in this model: 1: GRU is not a Linear or Conv2d"
    ):
        train(1, lambda: nn.Sequential(nn.ReLU(), nn.GRU(2, 2)), KFAC, lambda w: None)


def refused(match: str, loss: Callable[[nn.Module, Tensor, Tensor], Tensor], **how: Any) -> None:
    def use(worker: CallbackWorker) -> None:
        with pytest.raises(TrainingError, match=match):
            worker.step(*batch(0), (X,), loss=loss)

    train(1, net, lambda: KFAC(**how), use)


def test_passes_that_were_not_foretold_are_refused() -> None:
    def twice(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x), y) + F.cross_entropy(model(2 * x), y)

    refused(r"layer '4' has seen 2 backward passes .* accumulation_steps=1.*skip_layers=\['4'\]", twice)

    def derivatives(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        x = x.requires_grad_()
        slope = torch.autograd.grad(model(x).sum(), x, create_graph=True)[0]
        return slope.square().sum()

    refused("the loss is made of derivatives", derivatives)

    def elsewhere(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model[4](torch.zeros(X, 4, dtype=x.dtype)), y)  # type: ignore[index]

    refused("layer '0' was in no backward pass that its hooks have seen. Compile the model after", elsewhere)


def test_passes_outside_of_the_loop_count_nothing() -> None:
    def steps(*warm_up: int) -> Callable[[CallbackWorker], list[float]]:
        def use(worker: CallbackWorker) -> list[float]:
            for number in warm_up:
                worker.model(batch(number)[0]).sum().backward()
            for number in (1, 2):
                worker.step(*batch(number), (X,))
            return vector(worker.model).tolist()

        return use

    assert train(1, net, KFAC, steps(0, 3)) == train(1, net, KFAC, steps())


def test_policies_that_do_not_average_gradients_are_refused() -> None:
    def use(worker: CallbackWorker) -> None:
        worker.step(*batch(0), (6, 6))
        assert worker.now is not None
        other = type(worker.now)(1, 1, 0, worker.rank, (0, 1), (6, 6), StepPlan())
        with pytest.raises(ConfigError, match=r"gradients averaged over all workers in every step.*use sync='bsp'"):
            worker.part.gradients_ready(other, worker.optimizer)

    train(2, net, KFAC, use)


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ({"damping": 0.0}, "damping = 0.0 at step 0 must be above 0"),
        ({"damping": "some"}, "damping = 'some'"),
        ({"grad_worker_fraction": 0.0}, "grad_worker_fraction = 0.0"),
        ({"refresh": "never"}, "refresh = 'never'"),
        ({"compute_method": "qr"}, "compute_method = 'qr'"),
        ({"scaling": "none"}, "scaling = 'none'"),
        ({"kl_clip": 0.0}, "kl_clip = 0.0 must be above 0"),
        ({"accumulation_steps": 0}, "accumulation_steps = 0"),
    ],
)
def test_arguments_out_of_range_are_refused(what: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        KFAC(**what)


def test_a_refresh_that_fails_keeps_the_previous_basis_and_says_so() -> None:
    def use(worker: CallbackWorker) -> None:
        worker.step(*batch(0), (X,))
        part: Any = worker.part
        before = {unit: one.clone() for unit, one in part._bases.items()}
        part._kept[0].fill_(float("nan"))
        part.clock = 10
        part.stepped()
        with pytest.warns(RuntimeWarning, match="KFAC: 0 keeps its previous basis"):
            worker.step(*batch(1), (X,))
        assert torch.equal(part._bases[0], before[0])
        assert not torch.equal(part._bases[1], before[1])
        assert ("KFAC/refresh_failed", 1.0) in worker.logged
        assert torch.isfinite(vector(worker.model)).all()

    train(1, net, KFAC, use)


def test_sums_that_are_not_finite_leave_the_average_as_it_was() -> None:
    def use(worker: CallbackWorker) -> None:
        worker.step(*batch(0), (X,))
        part: Any = worker.part
        part.clock = 10
        part.stepped()
        before = part._kept[1].clone()
        part._views["0"][1].fill_(float("inf"))
        worker.step(*batch(1), (X,))
        assert torch.equal(part._kept[1], before)
        assert ("KFAC/not_finite", 1.0) in worker.logged

    train(1, net, KFAC, use)


def test_a_refresh_beside_the_training_lands_half_a_period_later_on_all_workers() -> None:
    def use(worker: CallbackWorker) -> list[bool]:
        part: Any = worker.part
        changed = []
        for number in range(13):
            before = {unit: one.clone() for unit, one in part._bases.items()}
            worker.step(*batch(number), (6, 6))
            changed.append(any(not torch.equal(before[unit], one) for unit, one in part._bases.items()))
        return changed

    for found in train(2, net, lambda: KFAC(inv_update_steps=4, refresh="shadow", grad_worker_fraction=1.0), use):
        assert [number for number, is_new in enumerate(found) if is_new] == [0, 6, 10]


def test_owners_move_and_what_they_keep_goes_with_them() -> None:
    def use(worker: CallbackWorker) -> tuple[Tensor, Any, Any]:
        part: Any = worker.part
        first = part.owners
        for number in range(12):
            part._measured.cost, part._measured.busy_s = 1.0, 0.01 if worker.rank == 0 else 1.0
            worker.step(*batch(number), (6, 6))
        return vector(worker.model), first, part.owners

    alone = trained((X,), lambda: KFAC(inv_update_steps=3, grad_worker_fraction=1.0))[0]
    for found, before, after in train(2, net, lambda: KFAC(inv_update_steps=3, grad_worker_fraction=0.5), use):
        assert before != after
        torch.testing.assert_close(found, alone, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    "part",
    [
        lambda share: KFAC(inv_update_steps=4, grad_worker_fraction=share),
        lambda share: SOAP(inv_update_steps=4, grad_worker_fraction=share),
    ],
)
def test_a_checkpoint_is_gone_on_from_with_other_workers(part: Callable[[float], Callback]) -> None:
    """Saved after a refresh is due again, so that bases made anew are those of a run that was not interrupted."""

    def first(worker: CallbackWorker) -> Any:
        for number in range(4):
            worker.step(*batch(number), (8, 4))
        with pytest.raises(CheckpointError, match="save inside `with session"):
            worker.part.state_dict()
        with worker.part.evaluation_model():
            state = copy.deepcopy(worker.part.state_dict())
        return state, copy.deepcopy(worker.model.state_dict()), copy.deepcopy(worker.optimizer.state_dict())

    momentum = 0.0 if isinstance(part(1.0), SOAP) else 0.9
    saved = train(2, net, lambda: part(0.5), first, momentum=momentum)
    for one, other in zip(saved[0][0].values(), saved[1][0].values(), strict=True):
        assert torch.equal(torch.as_tensor(one), torch.as_tensor(other))

    def second(worker: CallbackWorker) -> Tensor:
        state, weights, optimizer = copy.deepcopy(saved[1])
        worker.model.load_state_dict(weights)
        worker.optimizer.load_state_dict(optimizer)
        worker.part.load_state_dict(state)
        for number in range(4, 9):
            worker.step(*batch(number), (5, 4, 3))
        return vector(worker.model)

    whole = trained((X,), lambda: part(1.0), steps=9, momentum=momentum)[0]
    for found in train(3, net, lambda: part(1 / 3), second, momentum=momentum):
        torch.testing.assert_close(found, whole, rtol=0, atol=1e-6)

    def damaged(worker: CallbackWorker) -> None:
        state = copy.deepcopy(saved[0][0])
        del state[next(key for key in state if "/" in key)]
        with pytest.raises(CheckpointError, match="another model"):
            worker.part.load_state_dict(state)

    train(1, net, lambda: part(1.0), damaged, momentum=momentum)


@pytest.mark.parametrize("part", [KFAC, SOAP, Muon])
def test_a_loaded_state_is_saved_again_before_the_first_step(part: Callable[..., Callback]) -> None:
    def first(worker: CallbackWorker) -> Any:
        for number in range(4):
            worker.step(*batch(number), (12,))
        return copy.deepcopy(worker.part.state_dict())

    def second(worker: CallbackWorker) -> Any:
        worker.part.load_state_dict(copy.deepcopy(saved))
        return worker.part.state_dict()

    def matrices() -> nn.Module:
        return nn.Sequential(nn.Linear(5, 4, bias=False), nn.Tanh(), nn.Linear(4, 3, bias=False)).double()

    saved = train(1, matrices, part, first, momentum=0.0)[0]
    again = train(1, matrices, part, second, momentum=0.0)[0]
    assert saved.keys() == again.keys()
    assert [key for key in saved if not torch.equal(torch.as_tensor(saved[key]), torch.as_tensor(again[key]))] == []


@pytest.mark.parametrize("shares", [(9, 3), (6, 4, 2)])
def test_soap_on_unequal_workers_is_that_of_one_process(shares: tuple[int, ...]) -> None:
    def make(share: float) -> Callback:
        return SOAP(factor_update_steps=2, inv_update_steps=4, grad_worker_fraction=share, eps=1e-6)

    alone = trained((X,), lambda: make(1.0), momentum=0.0)[0]
    for share in (1.0, 1 / len(shares)):
        for found in trained(shares, lambda share=share: make(share), momentum=0.0):  # type: ignore[misc]
            torch.testing.assert_close(found, alone, rtol=0, atol=1e-5)


def test_soap_is_adam_where_the_basis_is_the_unit_matrix() -> None:
    """The formula, on one weight whose bases are kept as they are."""

    def use(worker: CallbackWorker) -> Tensor:
        part: Any = worker.part
        part._began = True
        part.clock = 1
        for one in part.turned:
            one.renew([one.neutral(0), one.neutral(1)])
        for number in range(5):
            worker.step(*batch(number), (X,))
        return vector(worker.model)

    found = train(1, net, lambda: SOAP(inv_update_steps=100, betas=(0.9, 0.99)), use, momentum=0.0, lr=0.01)[0]
    torch.manual_seed(1)
    model = net()
    adam = torch.optim.Adam(model.parameters(), lr=0.01, betas=(0.9, 0.99), eps=1e-8)
    for number in range(5):
        x, y = batch(number)
        adam.zero_grad()
        F.cross_entropy(model(x), y).backward()
        adam.step()
    torch.testing.assert_close(found, vector(model), rtol=0, atol=1e-5)
    with pytest.raises(ConfigError, match="its own momentum"):
        train(1, net, SOAP, lambda worker: None, momentum=0.9)


def test_autocast_and_a_scaler_leave_the_factors_as_they_are() -> None:
    def use(worker: CallbackWorker) -> Any:
        part: Any = worker.part
        scale = part._scaler.get_scale() if part._scaler is not None else 1.0

        def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
            return F.cross_entropy(model(x), y) * scale

        for weight in worker.model.parameters():
            weight.register_hook(lambda gradient: gradient / scale)
        worker.step(*batch(0), (X,), loss=loss)
        return [part.layers[0].factors(j, part._kept[j][None].clone(), 0.0)[0] for j in (0, 1)]

    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaled = train(1, net, lambda: KFAC(grad_scaler=scaler), use)[0]
    scaler.scale(torch.ones(1))
    plain = train(1, net, KFAC, use)[0]
    for one, other in zip(scaled, plain, strict=True):
        torch.testing.assert_close(one, other)

    def mixed(worker: CallbackWorker) -> Any:
        x, y = batch(0)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            worker.step(x.float(), y, (X,))
        return worker.part._kept[0].dtype, vector(worker.model)  # type: ignore[attr-defined]

    kind, weights = train(1, lambda: net().float(), KFAC, mixed)[0]
    assert kind == torch.float32
    assert torch.isfinite(weights).all()


def test_adaptive_damping_learns_where_a_fixed_one_sticks() -> None:
    def last(damping: Any) -> float:
        def use(worker: CallbackWorker) -> float:
            make = torch.Generator().manual_seed(0)
            x = torch.randn(40 * X, 5, generator=make, dtype=torch.float64)
            y = 5 * x.sum(1, keepdim=True).sin()
            for some in torch.arange(len(x)).split(X):
                worker.step(
                    x[some], y[some], (X,), loss=lambda model, a, b: F.mse_loss(model(a).sum(1, keepdim=True), b)
                )
            return F.mse_loss(worker.model(x).sum(1, keepdim=True), y).item()

        return float(train(1, net, lambda: KFAC(damping=damping, kl_clip=None), use, lr=0.1)[0])

    stuck = last(0.01)
    assert stuck > 10.0  # of 12.5 that the mean would have
    assert last("adaptive:start=0.01") < 0.75 * stuck


ONE_DRAWS = threading.Lock()
"""All threads draw from the same random numbers."""


def changing(part: Callable[[], Callback], lines: Lines) -> CallbackWorker:
    """A worker in a run whose members may change."""
    lines.changing = True
    with ONE_DRAWS:
        torch.manual_seed(1)
        model = net()
    return CallbackWorker(
        lines, model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9 * (part is not SOAP)), part()
    )


def test_where_workers_may_be_lost_each_keeps_all_and_gives_it_to_a_newcomer() -> None:
    """In the midst of a period: what was summed up before counts by those who have it."""

    def make() -> Callback:
        return KFAC(inv_update_steps=4, damping=0.1)

    def first(lines: Lines) -> Any:
        worker = changing(make, lines)
        for number in range(6):
            worker.step(*batch(number), (9, 3))
        part: Any = worker.part
        assert len(part._kept) == 6
        return copy.deepcopy([part.state_dict(), worker.model.state_dict(), worker.optimizer.state_dict()])

    one, two = together(2, first)
    for key, kept in one[0].items():
        assert torch.equal(torch.as_tensor(kept), torch.as_tensor(two[0][key])), key
    alone = trained((X,), make, steps=6)[0]
    torch.testing.assert_close(torch.cat([it.view(-1) for it in one[1].values()]), alone, rtol=0, atol=1e-9)

    def gone_on(lines: Lines) -> Any:
        worker = changing(make, lines)
        part: Any = worker.part
        state, weights, optimizer = copy.deepcopy(one)
        worker.model.load_state_dict(weights)
        worker.optimizer.load_state_dict(optimizer)
        part.load_state_dict(state)
        before = {unit: basis.clone() for unit, basis in part._bases.items()}
        worker.step(*batch(6), (6, 6))
        assert all(torch.equal(before[unit], basis) for unit, basis in part._bases.items())  # still those in force
        worker.step(*batch(7), (6, 6))
        worker.step(*batch(8), (6, 6))
        return vector(worker.model), part.identity

    (found, identity), (other, _) = together(2, gone_on)
    assert torch.equal(found, other)
    assert identity == pytest.approx(0.95**9)


@pytest.mark.parametrize("how", [{"grad_worker_fraction": 0.5}, {"refresh": "shadow"}])
def test_what_cannot_be_where_workers_may_be_lost_is_refused(how: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"in an elastic run: .* use grad_worker_fraction=1.0 and refresh='now'"):
        changing(lambda: KFAC(**how), ThreadLines.of(1)[0])
