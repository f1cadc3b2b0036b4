"""When replicas are compared, and what counts as a difference."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from uneven.run.gradients.replica_check import _Due, differing, digests


def test_short_epochs_do_not_pay_for_each_comparison() -> None:
    due = _Due()
    assert [at for at in range(300) if due.at(at // 7, at)] == [0, 1, 3, 7, 15, 31, 63, 127, 231, 255]


def test_replicas_are_compared_if_gradients_are_accumulated_over_three_batches() -> None:
    due = _Due()
    assert [at for at in range(2, 300, 3) if due.at(0, at)] == [2, 5, 8, 17, 32, 65, 128, 257]


@pytest.mark.parametrize(
    ("other", "apart"),
    [
        (torch.tensor([1.0, 2.0, 3.0]), False),
        (torch.tensor([1.0, 2.0, 3.00001]), False),  # another processor's rounding
        (torch.tensor([1.0, 2.0, 3.2]), True),
        (torch.tensor([-1.0, -2.0, -3.0]), True),
        (torch.tensor([1.0, 2.0, float("nan")]), False),  # a NaN is told of elsewhere
        (torch.zeros(3), True),
    ],
)
def test_replicas_differ_by_more_than_rounding(other: Tensor, apart: bool) -> None:
    mine = torch.tensor([1.0, 2.0, 3.0])
    total = digests([mine, torch.ones(2)]) * 2 + digests([other, torch.ones(2)])
    assert differing(total, [mine, torch.ones(2)], 3) == [0] * apart
