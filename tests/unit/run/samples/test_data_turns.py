"""Which batch a forward pass is on, while the user holds several."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from uneven.errors import TrainingError
from uneven.policy.core.actions import Exchange, Mean, Moment, Payload, StepPlan
from uneven.policy.samples.order import Portion
from uneven.run.gradients.batch_order import Turns
from uneven.run.samples.in_flight import InFlightBatches

BSP = StepPlan(exchanges=(Exchange(payload=Payload.GRADIENT, members=(0, 1), merge=Mean(), moment=Moment.BACKWARD),))


MODEL = torch.nn.Linear(3, 3)


def _hands() -> tuple[InFlightBatches, Turns]:
    turns = Turns(0, (0, 1))
    turns.take(BSP)
    return InFlightBatches(turns.of), turns


class Loop:
    """A user's loop on rank 0 of two, whose batches have the sizes given."""

    def __init__(self, *sizes: int) -> None:
        self.hands, self.turns = _hands()
        self._sizes = iter(enumerate(sizes))

    def fetch(self) -> tuple[Tensor, Tensor]:
        iteration, size = next(self._sizes)
        batch = torch.randn(size, 3), torch.zeros(size)
        shares = (size, 12 - size)
        self.hands.hand(Portion(iteration=iteration, epoch=0, start=12 * iteration, size=12, shares=shares), batch)
        return batch

    def passes(self, *args: Any) -> int:
        self.hands.forward(MODEL, args, {})
        assert self.hands.turn is not None
        return self.hands.turn.iteration


def test_before_the_first_batch_it_is_on_none() -> None:
    hands, _ = _hands()
    hands.forward(MODEL, (torch.zeros(3),), {})
    assert hands.turn is None


def test_in_a_plain_loop_it_is_the_newest_whatever_the_user_makes_of_it() -> None:
    loop = Loop(4, 6, 8)
    for iteration in range(3):
        loop.fetch()
        for _ in range(2):
            assert loop.passes(torch.randn(5, 3)) == iteration


@pytest.mark.parametrize("made", ["itself", "a view", "inside of a dictionary", "a half of it"])
def test_one_ahead_the_memory_of_the_arguments_tells(made: str) -> None:
    loop = Loop(4, 6, 8, 6)
    make = {"itself": lambda x: x, "a view": lambda x: x.view(-1, 1), "inside of a dictionary": lambda x: {"x": [x]},
            "a half of it": lambda x: x[2:]}[made]  # fmt: skip
    x, _ = loop.fetch()
    for iteration in range(3):
        ahead, _ = loop.fetch()
        assert loop.passes(make(x)) == iteration
        assert loop.passes(make(x)) == iteration, "once more"
        x = ahead
    assert loop.passes(x) == 3


def test_batches_cut_from_one_tensor_share_its_memory_and_are_told_apart() -> None:
    (hands, _), whole = _hands(), torch.randn(12, 3)
    for iteration, (start, size) in enumerate(((0, 4), (4, 8))):
        part = Portion(iteration=iteration, epoch=0, start=0, size=12, shares=(size, 12 - size))
        hands.hand(part, [whole[start : start + size]])
    hands.forward(MODEL, (whole[0:4],), {})
    assert hands.turn is not None
    assert hands.turn.iteration == 0


def test_a_batch_that_was_fetched_but_not_used_is_passed_over() -> None:
    loop = Loop(4, 6, 8)
    loop.fetch()
    x, _ = loop.fetch()
    assert loop.passes(x) == 1
    x, _ = loop.fetch()
    assert loop.passes(torch.randn(9, 3)) == 2, "nobody holds several any more"


def test_copies_that_count_alike_are_used_in_order() -> None:
    loop = Loop(6, 6, 6)
    loop.fetch()
    for iteration in range(2):
        loop.fetch()
        assert loop.passes(torch.randn(6, 3)) == iteration


def test_copies_that_do_not_are_told_apart_by_their_size_or_refused() -> None:
    loop = Loop(6, 4, 8, 6)
    loop.fetch()
    loop.fetch()
    assert loop.passes(torch.randn(6, 3)) == 0
    loop.fetch()
    assert loop.passes(torch.randn(7, 4)) == 1
    loop.fetch()
    with pytest.raises(TrainingError, match=r"8 samples \(iteration 2\), 6 samples \(iteration 3\).* optimizer.step"):
        loop.passes(torch.randn(5, 3))


def test_memory_that_is_used_again_is_not_taken_for_that_of_the_old_batch() -> None:
    loop = Loop(4, 8, 8)
    x, _ = loop.fetch()
    start = x.data_ptr()
    y = x.double()
    del x
    loop.fetch()
    for _ in range(64):  # until the memory of the first batch is another tensor's
        again = torch.randn(4, 3)
        if again.data_ptr() == start:
            break
    assert loop.passes(again.double()) == 0, "by its size"
    assert y.shape == (4, 3)


def test_the_hand_keeps_no_batch_that_the_user_let_go() -> None:
    import weakref

    loop = Loop(4, 4, 4)
    x, y = loop.fetch()
    seen = weakref.ref(x)
    del x, y
    loop.fetch()
    assert seen() is None
