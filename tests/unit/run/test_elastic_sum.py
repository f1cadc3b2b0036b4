"""A sum takes the place of what this worker has brought, and a NaN is blamed on the worker that brought it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from uneven.run.elastic.contribution import _STRETCH, Contribution
from uneven.run.elastic.summed import SummedBucket

BEYOND = _STRETCH + 3
"""Longer than one stretch, and not a whole number of them."""


@pytest.mark.parametrize("weight", [1.0, 0.5])
@pytest.mark.parametrize("place", [0, _STRETCH - 1, _STRETCH, BEYOND - 1])
@pytest.mark.parametrize(("own", "fine"), [(3.0, True), (torch.finfo(torch.float32).max, True), (math.inf, False)])
def test_what_is_brought_is_scaled_and_a_number_that_is_none_is_found(
    place: int, own: float, fine: bool, weight: float
) -> None:
    brought, sent = torch.ones(BEYOND), torch.full((BEYOND + 4,), 2.0)
    brought[place] = brought[place - 1] = own
    piece = Contribution(brought, lambda: weight, sent)
    piece.fill()
    assert piece.fine == fine
    assert torch.equal(piece.sum, brought * weight)
    assert sent[BEYOND:].tolist() == [2.0] * 4


def test_a_padded_batch_counts_nothing_even_where_it_is_no_number() -> None:
    piece = Contribution(torch.full((3,), math.nan), lambda: 0.0, torch.ones(3))
    piece.fill()
    assert piece.fine
    assert piece.sum.tolist() == [0.0] * 3


def test_memory_is_used_again_where_it_fits_and_is_nobody_elses() -> None:
    old = Contribution(torch.ones(4), lambda: 1.0, torch.ones(6))
    piece = Contribution(torch.ones(4), lambda: 1.0, torch.empty(0))
    piece.room(old, 2)
    assert piece.sent.data_ptr() == old.sent.data_ptr()
    for other in (
        Contribution(torch.ones(4), lambda: 1.0, torch.ones(5)),
        Contribution(torch.ones(4), lambda: 1.0, torch.ones(6, dtype=torch.float64)),
        Contribution(torch.ones(4), lambda: 1.0, torch.ones(6), kept=False),
    ):
        piece.room(other, 2)
        assert piece.sent.data_ptr() != other.sent.data_ptr()
        assert piece.sent.numel() == 6


class Bucket:
    """As DDP gives one to its hook: gradients of two parameters, the second one with channels last."""

    def __init__(self) -> None:
        self.all = torch.arange(1.0, 31.0)
        self.those = [nn.Parameter(torch.zeros(6)), nn.Parameter(torch.zeros(1, 2, 3, 4)), nn.Parameter(torch.zeros(0))]
        self.views = [
            self.all[:6],
            self.all[6:].as_strided((1, 2, 3, 4), (24, 1, 8, 2)),
            self.all[30:],
        ]

    def buffer(self) -> torch.Tensor:
        return self.all

    def gradients(self) -> list[torch.Tensor]:
        return self.views

    def parameters(self) -> list[nn.Parameter]:
        return self.those


def test_gradients_become_views_of_the_sum_in_the_layout_that_they_had() -> None:
    bucket = Bucket()
    summed = SummedBucket.of(bucket)
    for one, view in zip(bucket.those[:2], bucket.views, strict=False):
        one.grad = view
    for memory in (summed.sums, torch.empty(30), torch.empty(30)):  # anew after a loss
        piece = Contribution(bucket.all, lambda: 0.5, memory, kept=False)
        piece.fill()
        summed.complete(piece)
        summed.show()
        for one, view in zip(bucket.those[:2], bucket.views, strict=False):
            assert one.grad is not None
            assert one.grad.untyped_storage().data_ptr() == memory.untyped_storage().data_ptr()
            assert one.grad.stride() == view.stride()
            assert torch.equal(one.grad, view * 0.5)
        assert bucket.those[2].grad is None, "no gradient came to it"
