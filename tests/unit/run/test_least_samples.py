"""How many samples a worker takes at least, where its user does not say it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import uneven
from uneven.errors import ConfigError
from uneven.run.loop import StepLoop
from uneven.run.model.check import least_samples
from uneven.world import Elastic


def plain() -> nn.Module:
    return nn.Linear(3, 2)


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def test_batch_norm_needs_two_samples_on_each_worker() -> None:
    assert least_samples(plain()) == 1
    assert least_samples(normed()) == 2
    assert least_samples(nn.GroupNorm(1, 4)) == 1


@pytest.mark.parametrize(
    ("size", "elastic", "batch", "most", "least"),
    [
        (4, None, 8, None, 2),
        (4, None, 7, None, 1),  # not enough for all
        (4, None, 8, 1, 1),  # not more than this worker may have
        (4, None, 8, 2, 2),
        (2, Elastic(2, 5, 10.0), 9, None, 1),  # as many workers as there may be
        (2, Elastic(2, 5, 10.0), 10, None, 2),
    ],
)
def test_two_where_there_are_enough(
    size: int, elastic: Elastic | None, batch: int, most: int | None, least: int
) -> None:
    loop: Any = SimpleNamespace(context=SimpleNamespace(world=SimpleNamespace(size=size, elastic=elastic)), _needs=2)
    assert StepLoop.least(loop, batch, most) == least
    loop._needs = 1
    assert StepLoop.least(loop, batch, most) == 1


@pytest.mark.parametrize(("model", "given", "least"), [(plain, {}, 1), (normed, {}, 2), (normed, {"min_batch": 3}, 3)])
def test_a_loader_goes_by_the_model_or_by_what_is_said(model: Any, given: dict[str, int], least: int) -> None:
    with uneven.Session() as session:
        session.setup(model())
        session.loader(TensorDataset(torch.zeros(8, 3)), 4, **given)
        assert session._loop.reports._agreed is not None
        assert session._loop.reports._agreed.limits.lower == (least,)


def test_what_is_said_is_kept_though_it_does_not_fit() -> None:
    with uneven.Session() as session:
        session.setup(normed())
        with pytest.raises(ConfigError, match="from 3 to 2 samples"):
            session.loader(TensorDataset(torch.zeros(8, 3)), 4, min_batch=3, max_batch=2)
