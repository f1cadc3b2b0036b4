"""Layers, batches and gradients of usual models and loops that K-FAC and SOAP leave plain, leave out, or refuse."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune
from workers import CallbackWorker, X, batch, net, train, vector

from brought import brought, refusal
from uneven import KFAC, SOAP


class Computed(nn.Module):
    """Layers whose weight or forward pass is not that of a Linear, and one that is."""

    def __init__(self) -> None:
        super().__init__()
        self.normed = parametrizations.weight_norm(nn.Linear(4, 4, bias=False))
        self.spectral = parametrizations.spectral_norm(nn.Conv2d(4, 4, 3))
        self.straight = parametrizations.orthogonal(nn.Linear(4, 4))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own advice to use the newer one
            self.old = nn.utils.weight_norm(nn.Linear(4, 4))
        self.pruned = prune.identity(nn.Linear(4, 4), "weight")
        self.shifted = prune.identity(nn.Linear(4, 4), "bias")
        self.scaled = Scaled(4, 4)
        self.taken = nn.Linear(4, 4)


class Scaled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, 2 * self.weight, self.bias)


@brought("second order", "torch", "layers under `parametrizations`, `weight_norm`, pruning: keep their plain gradient")
def test_layers_whose_weight_is_computed_keep_their_plain_gradient() -> None:
    notes, layers = train(1, Computed, KFAC, lambda w: (w.part.notes, w.part.layers))[0]
    assert [one.name for one in layers] == ["taken"]
    assert "overrides forward()" in notes.pop("scaled")
    assert list(notes) == ["normed", "spectral", "straight", "old", "pruned", "shifted"]
    assert all("computed from other parameters" in why for why in notes.values())


@brought("second order", "torch", "`nn.TransformerEncoder`: its `out_proj` keeps its plain gradient")
def test_an_encoder_trains_without_its_output_projections() -> None:
    def build() -> nn.Module:
        layer = nn.TransformerEncoderLayer(5, 1, 8, dropout=0.0, batch_first=True)
        encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        return nn.Sequential(nn.Unflatten(0, (-1, 1)), encoder, nn.Flatten(0, 1), nn.Linear(5, 3)).double()

    def use(worker: CallbackWorker) -> Any:
        for number in range(3):
            worker.step(*batch(number), (X,) if worker.rank == 0 and single else (8, 4))
        return vector(worker.model), worker.part.notes, len(worker.part.layers)  # type: ignore[attr-defined]

    single = True
    ((alone, notes, layers),) = train(1, build, lambda: KFAC(damping=0.1, inv_update_steps=2), use)
    assert layers == 5
    assert "without calling it" in notes["1.layers.0.self_attn.out_proj"]
    single = False
    for found, *_ in train(2, build, lambda: KFAC(damping=0.1, inv_update_steps=2), use):
        torch.testing.assert_close(found, alone, rtol=0, atol=1e-12)


@brought("second order", "kfac-pytorch", "a bad batch that the loop skips after its backward pass")
@pytest.mark.parametrize("passes", [1, 2])
def test_a_batch_that_the_loop_leaves_out_leaves_no_trace(passes: int) -> None:
    def part() -> KFAC:
        return KFAC(damping=0.1, inv_update_steps=2, accumulation_steps=passes)

    def leave_out(worker: CallbackWorker, loss: float) -> None:
        """Passes without a step: ``if not loss.isfinite(): optimizer.zero_grad(); continue``."""
        assert worker.now is not None
        worker.now = dataclasses.replace(worker.now)
        worker.optimizer.zero_grad()
        for part in batch(99)[0][: worker.now.samples].tensor_split(passes):
            (worker.model(part).sum() * loss).backward()
        worker.optimizer.zero_grad(set_to_none=worker.rank == 0)

    def use(worker: CallbackWorker) -> Tensor:
        for number in range(6):
            if bad and number in (2, 3):
                leave_out(worker, float("nan"))
                leave_out(worker, 1e9)
            worker.now = None
            worker.step(*batch(number), (8, 4), passes=passes)
        return vector(worker.model)

    bad = False
    good = train(2, net, part, use)[0]
    bad = True
    for found in train(2, net, part, use):
        torch.testing.assert_close(found, good, rtol=0, atol=1e-12)


@brought("second order", "torch", "SOAP on an `Embedding(sparse=True)`", refused=True)
def test_sparse_gradients_under_soap_are_refused() -> None:
    class Table(nn.Module):
        def __init__(self, sparse: bool) -> None:
            super().__init__()
            self.rows = nn.Embedding(10, 3, sparse=sparse)

        def forward(self, x: Tensor) -> Tensor:
            return F.embedding(x.argmax(1), self.rows.weight, sparse=True)

    with refusal(r"'rows' gives gradients of a few rows: use sparse=False, or give that table to another"):
        train(1, lambda: Table(True), SOAP, lambda worker: None, momentum=0.0)
    with refusal(r"'rows.weight' has gradients of a few rows: use sparse=False"):
        train(1, lambda: Table(False), SOAP, lambda worker: worker.step(*batch(0), (X,)), momentum=0.0)
