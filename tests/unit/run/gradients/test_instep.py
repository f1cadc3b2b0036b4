"""Marks of the place in the loop, whose sum tells whether all are at one."""

from __future__ import annotations

import pytest
import torch

from uneven.run.lines.in_step import mark, out_of_step


def _sum(places: list[tuple[int, int]], dtype: torch.dtype) -> float:
    marks = [mark(*place, index, len(places), dtype) for index, place in enumerate(places)]
    total = torch.tensor(0.0, dtype=dtype)
    for one in marks:
        total += torch.tensor(one, dtype=dtype)
    return float(total)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("ranks", [2, 3, 8, 63])
def test_the_sum_is_nothing_just_where_all_are_at_one_place(dtype: torch.dtype, ranks: int) -> None:
    for place in ((0, 0), (0, 1), (3, 12345), (70, 10**6)):
        together = [place] * ranks
        assert _sum(together, dtype) == 0.0
        for rank in (0, ranks - 1):
            for other in ((place[0], place[1] + 1), (place[0] + 1, place[1])):
                assert _sum([*together[:rank], other, *together[rank + 1 :]], dtype) != 0.0


def test_more_ranks_than_a_type_can_count_are_never_taken_for_apart() -> None:
    assert _sum([(0, 7)] * 400, torch.bfloat16) == 0.0
    assert _sum([(0, 7)] * 400, torch.int32) == 0.0


def test_the_message_says_who_is_where() -> None:
    def total(vector: torch.Tensor) -> None:
        vector += torch.tensor([0.0, 0.0, 0.0, 0.0, 8.0, 1.0, 1.0, 9.0, 1.0])

    error = out_of_step(total, 0, 8, 0, (0, 1, 3))
    assert "rank 0, 1: iteration 8 of epoch 0; rank 3: iteration 9 of epoch 1" in str(error)
    assert "Look for a break" in str(error)
    several = out_of_step(total, 0, 8, 0, (0, 1, 3), passes=2)
    assert "x.split(n)" in str(several)
    assert "Look for a break" not in str(several)
