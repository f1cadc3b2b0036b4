"""How many samples a worker takes at least, where its user does not say it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import uneven
from uneven.errors import ConfigError
from uneven.run.model.check import least_samples


def plain() -> nn.Module:
    return nn.Linear(3, 2)


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def test_batch_norm_needs_two_samples_on_each_worker() -> None:
    assert least_samples(plain()) == 1
    assert least_samples(normed()) == 2
    assert least_samples(nn.GroupNorm(1, 4)) == 1
    assert least_samples(nn.SyncBatchNorm(4)) == 1  # it takes the variance over all workers


@pytest.mark.parametrize(("model", "given", "least"), [(plain, {}, 1), (normed, {}, 2), (normed, {"min_batch": 3}, 3)])
@pytest.mark.parametrize("loader_first", [False, True])
def test_a_loader_goes_by_the_model_or_by_what_is_said(
    model: Any, given: dict[str, int], least: int, loader_first: bool
) -> None:
    with uneven.Session() as session:
        calls = [
            lambda: session.setup(model()),
            lambda: session.loader(TensorDataset(torch.zeros(8, 3)), 4, **given),
        ]
        for call in reversed(calls) if loader_first else calls:
            call()
        assert session._loop.reports._agreed is not None
        assert session._loop.reports._agreed.limits.lower == (least,)


def test_one_worker_may_train_on_single_samples() -> None:
    """As in plain PyTorch: that is between the model and its data."""
    with uneven.Session() as session:
        session.setup(normed())
        assert len(session.loader(TensorDataset(torch.zeros(8, 3)), 1)) == 8


def test_what_is_said_is_kept_though_it_does_not_fit() -> None:
    with uneven.Session() as session:
        session.setup(normed())
        with pytest.raises(ConfigError, match="from 3 to 2 samples"):
            session.loader(TensorDataset(torch.zeros(8, 3)), 4, min_batch=3, max_batch=2)
