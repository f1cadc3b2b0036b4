"""Fleets and searches whose processes compute on a GPU."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Subset

from uneven import fleet, search
from uneven.cluster.virtual.datasets import digits

pytestmark = pytest.mark.timeout(180)


def on_gpu(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    if not output.is_cuda:
        raise ValueError(f"the output is on {output.device}")
    return F.cross_entropy(output, target)


def member(width: int) -> fleet.Member:
    torch.manual_seed(width)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))
    return fleet.Member(model, torch.optim.Adam(model.parameters(), lr=3e-3), batch_size=50, loss=on_gpu)


def test_a_fleet_trains_on_the_device(tmp_path: Path) -> None:
    found = digits()
    ensemble = fleet.Ensemble(
        members={f"w{width}": partial(member, width) for width in (16, 32, 64)},
        dataset=Subset(found.train, range(600)),
        validate=found.test,
        metric=fleet.accuracy,
        max_epochs=3,
    )
    result = fleet.train(ensemble, directory=tmp_path, progress=False)
    assert len(result.table) == 3
    assert result.table[0].metric > 0.6


def on_device(trial: search.Trial) -> None:
    torch.manual_seed(trial.seed)
    model = nn.Linear(4, 1, device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=float(trial["lr"]))  # type: ignore[arg-type]
    for step in trial.steps(model=model, optimizer=optimizer):
        if step == 9:
            return
        x = torch.randn(16, 4, device="cuda")
        loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        trial.report(loss=loss.item())


def test_a_search_pauses_and_resumes_on_the_device(tmp_path: Path) -> None:
    result = search.run(
        on_device, space={"lr": search.grid(0.001, 0.01, 0.1)}, metric="loss", mode="min", trials=3,
        scheduler="asha-promote:max_t=9,reduction_factor=3", devices="auto", directory=tmp_path, progress=False,
    )  # fmt: skip
    assert result.best.params["lr"] != 0.001  # the one that is too slow
