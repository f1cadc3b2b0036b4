"""What members of an elastic run say in a few numbers: told by each to each, it is what the sum of all would say."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import torch

from uneven.run.lines.communicator import RoundPlace
from uneven.run.lines.control_words import LEAVING, NONE, ControlWords, WordsMessage

SIZE, LENGTH = 3, 4
SOON = timedelta(seconds=1)


class Table:
    """Stands for the process groups of three members: what each has sent arrives once all have."""

    def __init__(self) -> None:
        self.size = SIZE
        self.begun: list[tuple[torch.Tensor, torch.Tensor]] = []

    def swap(self, sent: torch.Tensor, arrived: torch.Tensor, sent_sizes: list[int], arrived_sizes: list[int]) -> Any:
        assert sent_sizes == arrived_sizes == [len(sent) // SIZE] * SIZE
        self.begun.append((sent, arrived))
        return self

    def wait(self, within: timedelta) -> None:
        if len(self.begun) < SIZE:
            raise RuntimeError("timed out")
        for place, (_, arrived) in enumerate(self.begun):
            arrived.copy_(torch.cat([sent.view(SIZE, -1)[place] for sent, _ in self.begun]))


def filled(dtype: torch.dtype, late: int | None) -> list[tuple[ControlWords, torch.Tensor]]:
    """Of three members the first reports, the second leaves and the last calls; one may be an iteration behind."""
    members = []
    for place in range(SIZE):
        words = ControlWords(place, SIZE, LENGTH, dtype, announces=True)
        if place == 0:
            words.carry([0.1, 2.0, 3.0, 4.0])
        if place == 2:
            words.call([5.0, 6.0, 7.0, 8.0])
        numbers = torch.full((words.count(dtype),), 9.0, dtype=dtype)
        words.write(numbers, RoundPlace("", 1, 7 - (place == late)), LEAVING if place == 1 else NONE)
        members.append((words, numbers))
    return members


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("late", [None, 0, 1])
def test_telling_says_what_the_sum_says(dtype: torch.dtype, late: int | None) -> None:
    members = filled(dtype, late)
    total = torch.stack([numbers for _, numbers in members]).sum(0)
    table = Table()
    tellings = [WordsMessage(numbers, place, table) for place, (_, numbers) in enumerate(members)]  # type: ignore[arg-type]
    for telling in tellings:
        telling.wait(SOON)
    for words, numbers in members:
        assert numbers.tolist() == total.tolist()
        words.read(numbers)
        assert words.apart == (late is not None)
        assert words.announced == (NONE, LEAVING, NONE)
        heard = words.take()
        assert heard is not None
        assert heard.called


def test_it_is_waited_for_as_a_work() -> None:
    table = Table()
    _, numbers = filled(torch.float64, None)[1]
    before = numbers.tolist()
    telling = WordsMessage(numbers, 1, table)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="timed out"):
        telling.wait(SOON)
    assert numbers.tolist() == before
