"""K-FAC on unequal shares is that of one process on the union batch, and its arithmetic that of the papers."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from workers import CallbackWorker, train, vector

from uneven import KFAC

X, STEPS = 16, 12


def small() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(inplace=True), nn.Conv2d(4, 4, 3, stride=2), nn.Tanh(),
        nn.Conv2d(4, 3, 1, bias=False), nn.Flatten(), nn.Linear(12, 6), nn.Tanh(), nn.Linear(6, 3),
    ).double()  # fmt: skip


def batches() -> list[tuple[Tensor, Tensor]]:
    make = torch.Generator().manual_seed(3)
    return [
        (torch.randn(X, 2, 6, 6, generator=make, dtype=torch.float64), torch.randint(0, 3, (X,), generator=make))
        for _ in range(STEPS)
    ]


def run_on(shares: tuple[int, ...], passes: int = 1, **how: object) -> list[Tensor]:
    def use(worker: CallbackWorker) -> Tensor:
        for x, y in batches():
            worker.step(x, y, shares, passes=passes)
        return vector(worker.model)

    options = {"damping": 0.1, "inv_update_steps": 3, "kl_clip": 0.01, "accumulation_steps": passes} | how
    return train(len(shares), small, lambda: KFAC(**options), use)


@pytest.mark.parametrize(
    ("shares", "how"),
    [
        ((12, 4), {"grad_worker_fraction": 1.0}),
        ((12, 4), {"grad_worker_fraction": 0.5, "factor_update_steps": 2, "inv_update_steps": 4}),
        ((8, 5, 3), {"grad_worker_fraction": 1 / 3, "factor_decay": "exp"}),
        ((7, 5, 0, 4), {"grad_worker_fraction": 0.5}),
        ((8, 5, 2, 1), {"grad_worker_fraction": 0.25, "compute_method": "inverse"}),
        ((4, 4, 4, 4), {"grad_worker_fraction": 1.0}),
        ((12, 4), {"grad_worker_fraction": 1.0, "scaling": "compat", "damping": 1e-6}),
        ((10, 6), {"grad_worker_fraction": 1.0, "assignment_strategy": "round-robin", "colocate_factors": False}),
        ((10, 6), {"grad_worker_fraction": 0.5, "kl_clip": None, "factor_decay": 0.5, "inv_update_steps": 6}),
    ],
)
def test_unequal_workers_train_as_one_process_on_the_union(shares: tuple[int, ...], how: dict[str, object]) -> None:
    alone = run_on((X,), **(how | {"grad_worker_fraction": 1.0}))[0]
    for one in run_on(shares, **how):
        torch.testing.assert_close(one, alone, rtol=0, atol=1e-9)


def test_passes_of_an_accumulation_count_as_one_batch() -> None:
    alone = run_on((X,))[0]
    for one in run_on((8, 8), passes=2):
        torch.testing.assert_close(one, alone, rtol=0, atol=1e-9)


@pytest.mark.parametrize("scaling", ["kfc", "compat"])
def test_means_over_other_things_than_samples_are_as_one_process_too(scaling: str) -> None:
    """As under ``session.loss_mean``: samples of three classes count 1, 2 and 5."""
    rates = torch.tensor([1.0, 2.0, 5.0], dtype=torch.float64)
    shares = (9, 5, 2)

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x), y, weight=rates)

    def trained(shares: tuple[int, ...]) -> list[Tensor]:
        def use(worker: CallbackWorker) -> Tensor:
            for x, y in batches():
                counts = [float(rates[one].sum()) for one in y.split(shares)]
                worker.step(x, y, shares, counts=counts, loss=loss)
            return vector(worker.model)

        how = {
            "damping": 0.1 if scaling == "kfc" else 1e-6,
            "scaling": scaling,
            "grad_worker_fraction": 1.0,
            "inv_update_steps": 3,
        }
        return train(len(shares), small, lambda: KFAC(**how), use)

    alone = trained((X,))[0]
    for one in trained(shares):
        torch.testing.assert_close(one, alone, rtol=0, atol=1e-9)
