"""A replica as one vector, and a weighted mean as one sum."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from uneven.run.replicas.flat import Flat, apart, average, contribution, mean_square_root, resting_in


def some() -> list[nn.Parameter]:
    return [nn.Parameter(torch.tensor([[1.0, 2.0], [3.0, 4.0]])), nn.Parameter(torch.tensor(5.0))]


def test_what_is_read_can_be_written_and_changed() -> None:
    flat = Flat(some(), [torch.tensor([6.0])])
    values = flat.read()
    assert values.tolist() == [1, 2, 3, 4, 5, 6]
    assert (flat.size, flat.trained) == (6, 5)
    flat.write(values * 2)
    assert flat.read().tolist() == [2, 4, 6, 8, 10, 12]
    flat.add(torch.ones(6), 0.5)
    assert flat.read().tolist() == [2.5, 4.5, 6.5, 8.5, 10.5, 12.5]
    flat.interpolate(torch.zeros(6), 0.5)
    assert flat.read().tolist() == [1.25, 2.25, 3.25, 4.25, 5.25, 6.25]
    assert values.tolist() == [1, 2, 3, 4, 5, 6], "a copy"


def test_writing_does_not_disturb_a_backward_pass_nor_a_moved_model() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    flat = Flat(list(model.parameters()))
    loss = model(torch.ones(1, 2)).sum()
    flat.add(torch.ones(flat.size), 1.0)
    loss.backward()  # autograd refuses parameters that were changed in place, if it sees it
    model.double().float()
    flat.write(torch.zeros(flat.size))
    assert all(not one.any() for one in model.parameters())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_arithmetic_is_at_least_in_float32_and_as_wide_as_the_model(dtype: torch.dtype) -> None:
    flat = Flat([nn.Parameter(torch.ones(3, dtype=dtype)), nn.Parameter(torch.ones(2))])
    assert flat.dtype == (torch.float64 if dtype is torch.float64 else torch.float32)
    before = flat.read()
    flat.write(before)
    assert torch.equal(flat.read(), before)


def test_a_weighted_mean_is_one_sum() -> None:
    x, y = torch.tensor([1.0, 5.0]), torch.tensor([3.0, 1.0])
    total = contribution(x, 3) + contribution(y, 1, resting=True)
    assert average(total).tolist() == [1.5, 4.0]
    assert resting_in(total) == 1


def test_who_has_no_samples_counts_only_where_nobody_has_any() -> None:
    x, y = torch.tensor([1.0, 5.0]), torch.tensor([3.0, 1.0])
    assert average(contribution(x, 0) + contribution(y, 7)).tolist() == [3.0, 1.0]
    assert average(contribution(x, 0) + contribution(y, 0)).tolist() == [2.0, 3.0]
    assert average(contribution(x, 0)).tolist() == x.tolist()


def test_memory_of_an_earlier_exchange_is_used_again() -> None:
    flat, room = Flat(some()), torch.empty(7)
    values = flat.read(flat.room())
    assert flat.read(values).data_ptr() == values.data_ptr()
    total = contribution(values, 2, into=room)
    assert total.data_ptr() == average(total).data_ptr() == room.data_ptr()
    assert room[:5].tolist() == values.tolist()


def test_how_far_one_is_from_the_mean() -> None:
    x, y = torch.tensor([1.0, 5.0]), torch.tensor([3.0, 1.0])
    total, room = contribution(x, 3) + contribution(y, 1), torch.empty(2)
    for into in (None, room):
        away = apart(y, total, into)
        assert away.tolist() == [1.5, -3.0]
        assert mean_square_root(away) == pytest.approx((11.25 / 2) ** 0.5)
    assert away.data_ptr() == room.data_ptr()
    assert mean_square_root(torch.empty(0)) == 0
