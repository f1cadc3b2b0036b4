"""RNN and LSTM: values and gradients are PyTorch's, and they learn what a moving average cannot."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from shown import show

from uneven.errors import ConfigError
from uneven.policy.predict import EMA, LSTM, RNN, Predictor, predictors
from uneven.policy.predict._cells import Cell, LongCell, PlainCell

INPUTS, HIDDEN, LENGTH, BATCH = 2, 5, 7, 4


def drawn(cell: Cell) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    flat = rng.normal(0.0, 0.5, cell.size(INPUTS, HIDDEN))
    return flat, rng.normal(0.0, 1.0, (BATCH, LENGTH, INPUTS)), rng.normal(0.0, 1.0, BATCH)


@pytest.mark.parametrize(("cell", "known"), [(PlainCell(), torch.nn.RNN), (LongCell(), torch.nn.LSTM)])
def test_values_and_gradients_are_pytorchs(cell: Cell, known: type[torch.nn.Module]) -> None:
    flat, x, target = drawn(cell)
    weights = cell.split(flat, INPUTS, HIDDEN)
    layer = known(INPUTS, HIDDEN, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        layer.weight_ih_l0.copy_(torch.tensor(weights.inputs.T))
        layer.weight_hh_l0.copy_(torch.tensor(weights.hidden.T))
        layer.bias_ih_l0.copy_(torch.tensor(weights.offsets))
        layer.bias_hh_l0.zero_()
    out = torch.tensor(weights.out, requires_grad=True)
    last = layer(torch.tensor(x))[0][:, -1]
    loss = torch.nn.functional.mse_loss(last @ out, torch.tensor(target))
    loss.backward()
    assert cell.forward(weights, x)[0] == pytest.approx(last.detach().numpy(), abs=1e-12)
    ours, slope = cell.gradient(weights, x, target)
    assert ours == pytest.approx(loss.item())
    found = cell.split(slope, INPUTS, HIDDEN)
    inputs, hidden = found.inputs.T, found.hidden.T
    assert inputs == pytest.approx(layer.weight_ih_l0.grad.numpy(), abs=1e-12)
    assert hidden == pytest.approx(layer.weight_hh_l0.grad.numpy(), abs=1e-12)
    assert found.offsets == pytest.approx(layer.bias_ih_l0.grad.numpy(), abs=1e-12)
    assert found.out == pytest.approx(out.grad.numpy(), abs=1e-12)


def missed(predictor: Predictor, speeds: list[float], cpu: list[float] | None = None) -> float:
    return float(np.sqrt(np.square(np.subtract(show(predictor, speeds, cpu), speeds)[300:]).mean()))


@pytest.mark.parametrize("kind", [RNN, LSTM])
def test_they_learn_a_walk(kind: type[Predictor]) -> None:
    rng = np.random.default_rng(0)
    speeds = (200.0 + np.cumsum(rng.normal(0.0, 3.0, 900))).clip(50).tolist()
    assert missed(kind(), speeds) < 0.85 * missed(EMA(), speeds)


def test_uses_are_read_if_asked_for() -> None:
    rng = np.random.default_rng(0)
    use = np.repeat(rng.random(61) * 0.6, 15)
    speeds = (100.0 * (1.0 - use[:-1]) * np.exp(rng.normal(0.0, 0.02, len(use) - 1))).tolist()
    blind, seeing = RNN(), RNN(uses=True)
    assert missed(seeing, speeds, use[1:].tolist()) < 0.8 * missed(blind, speeds, use[1:].tolist())


@pytest.mark.parametrize("kind", [RNN, LSTM])
def test_a_lone_spike_is_ignored_and_a_lasting_change_is_not(kind: type[Predictor]) -> None:
    predictor = kind()
    show(predictor, (100.0 * (1.0 + np.random.default_rng(1).normal(0.0, 0.02, 200))).tolist())
    show(predictor, [20.0])
    assert predictor.predict() == pytest.approx(100.0, rel=0.05)
    show(predictor, [50.0] * 15)
    assert predictor.predict() == pytest.approx(50.0, rel=0.1)


@pytest.mark.parametrize("spec", ["rnn:hidden=0", "lstm:length=1", "rnn:batch=0", "lstm:rate=0", "rnn:uses=1"])
def test_bad_options_are_refused(spec: str) -> None:
    with pytest.raises(ConfigError):
        predictors.resolve(spec)
