"""A sum takes the place of what this worker has brought, and a NaN is blamed on the worker that brought it."""

from __future__ import annotations

import math

import pytest
import torch

from uneven.run.elastic.recovery import _STRETCH, Contribution

BEYOND = _STRETCH + 3
"""Longer than one stretch, and not a whole number of them."""


@pytest.mark.parametrize("place", [0, _STRETCH - 1, _STRETCH, BEYOND - 1])
@pytest.mark.parametrize(
    ("own", "total", "fine"), [(1.0, 3.0, True), (1.0, math.nan, True), (math.inf, math.inf, False)]
)
def test_the_sum_is_taken_and_a_number_that_is_none_is_found(place: int, own: float, total: float, fine: bool) -> None:
    brought, sent = torch.arange(BEYOND, dtype=torch.float32), torch.full((BEYOND + 4,), 2.0)
    brought[place], sent[place] = own, total
    piece = Contribution(brought, lambda: 1.0, sent)
    assert piece.take() == fine
    assert torch.equal(brought.nan_to_num(-1.0), sent[:BEYOND].nan_to_num(-1.0))
