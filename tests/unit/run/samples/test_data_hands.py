"""Which batches are in the model: those that an optimizer step has come after, of the model that they are for."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from uneven.errors import TrainingError
from uneven.policy.core.batch_weight import BatchWeight
from uneven.policy.samples.order import Portion
from uneven.run.samples import in_flight as module
from uneven.run.samples.in_flight import InFlightBatches


class Desk:
    """A model, its optimizer, and batches that are handed out and trained on in any order."""

    def __init__(self, *, given: bool = True) -> None:
        self.model = nn.Linear(2, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.hands = InFlightBatches()
        self.hands.watch(self.model, *([self.optimizer] if given else []))
        self.model.register_forward_pre_hook(self.hands.forward, with_kwargs=True)
        self.batches: list[Tensor] = []

    def hand(self, shape: Any = dict) -> Tensor:
        number = len(self.batches)
        x = torch.full((3, 2), float(number))
        self.hands.hand(part(number), {"x": x} if shape is dict else shape(x))
        self.batches.append(x)
        return x

    def train(self, x: Tensor) -> None:
        self.model(x).sum().backward()

    def step(self) -> list[int]:
        """Numbers of the batches that are in no model after it."""
        self.optimizer.step()
        self.optimizer.zero_grad()
        return self.left()

    def left(self) -> list[int]:
        return [one.iteration for one in self.hands.unused()]


@pytest.fixture
def desk() -> Desk:
    return Desk()


def part(number: int) -> Portion:
    return Portion(iteration=number, epoch=0, start=3 * number, size=3, shares=(3,))


def test_a_pass_belongs_to_the_batch_whose_memory_it_is_given(desk: Desk) -> None:
    first, second = desk.hand(), desk.hand(lambda x: [(x, "text"), None])
    desk.train(first)
    desk.train(first[1:])  # the same batch again, a piece of it
    assert desk.left() == [0, 1], "there was no step yet"
    assert desk.step() == [1]
    third = desk.hand()
    desk.train(third)  # the second one is left out
    assert desk.step() == []
    assert second is desk.batches[1]


def test_where_no_memory_is_shared_it_belongs_to_the_next_one(desk: Desk) -> None:
    desk.hand()
    for number in range(3):
        desk.hand()
        desk.train(desk.batches[number] + 1.0)
        assert desk.step() == [number + 1]


def test_what_trains_nothing_is_no_pass(desk: Desk) -> None:
    first, second = desk.hand(), desk.hand()
    desk.train(first)
    with torch.no_grad():
        desk.model(second)
    assert desk.step() == [1]
    assert desk.step() == [1], "a second optimizer's step takes in no further batch"


def test_a_step_takes_in_all_where_only_parts_of_the_model_are_called(desk: Desk) -> None:
    desk.hand()
    desk.model.forward(desk.hand()).sum().backward()
    assert desk.step() == []


def test_only_optimizers_of_this_model_count(desk: Desk) -> None:
    desk.train(desk.hand())
    other = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    other(torch.ones(1)).sum().backward()
    optimizer.step()
    assert desk.left() == [0]
    torch.optim.Adam([*other.parameters(), *desk.model.parameters()]).step()
    assert desk.left() == []


def test_without_an_optimizer_all_counts_as_used_until_one_steps() -> None:
    desk = Desk(given=False)
    first, _ = desk.hand(), desk.hand()
    assert desk.left() == []
    assert desk.hands.ahead() is None
    desk.train(first)
    assert desk.step() == [1]
    assert desk.hands.ahead() == part(1)


def test_tensors_without_memory_are_no_help_and_no_harm(desk: Desk) -> None:
    desk.hand(lambda x: (x.to_sparse(), ["text"] * 1000))
    torch.func.vmap(desk.model)(torch.ones(4, 2)).sum().backward()
    assert desk.step() == []


def test_who_never_steps_is_forgotten_piece_by_piece(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST", 3)
    for _ in range(5):
        desk.train(desk.hand())
    assert desk.left() == [2, 3, 4]
    desk.hand()
    assert desk.step() == [5]


def test_what_was_left_is_cleared_and_nothing_is_watched_for_ever(desk: Desk) -> None:
    desk.hand()
    desk.hands.clear()
    assert desk.left() == []
    gone = weakref.ref(desk.hands)
    desk.model._forward_pre_hooks.clear()
    desk.hands = InFlightBatches()
    gc.collect()
    assert gone() is None


def test_one_that_is_collected_in_the_midst_of_a_step_of_another_disturbs_it_not(desk: Desk) -> None:
    """As the session of an earlier cell of a notebook, whenever the collector of garbage comes."""
    collecting = register_optimizer_step_post_hook(lambda *rest: gc.collect())
    try:
        earlier = Desk()
        earlier.model.whole = earlier  # a cycle, which nothing but the collector ends
        gone = weakref.ref(earlier.hands)
        del earlier
        desk.train(desk.hand())
        assert gone() is not None
        assert desk.step() == []
    finally:
        collecting.remove()
    assert gone() is None


def weighed(weights: list[float], samples: int = 3) -> Desk:
    desk = Desk()
    desk.hands.turn_of = lambda part: BatchWeight(part.iteration, 0, samples, [*weights, 0.125][part.iteration])
    return desk


def test_a_batch_that_is_used_again_counts_as_it_did() -> None:
    desk = weighed([0.5, 0.25, 0.125])
    for _ in range(3):
        desk.train(desk.hand())
        desk.step()
    desk.hands.put_down(whole=True)
    for number, weight in ((1, 0.25), (0, 0.5), (2, 0.125)):
        desk.train(desk.batches[number][1:])
        assert (desk.hands.turn.iteration, desk.hands.turn.in_gradient) == (number, weight)


def test_a_copy_counts_by_its_size_or_not_at_all() -> None:
    for weights in ([0.5, 0.5], [0.5, 0.25]):
        desk = weighed(weights)
        for _ in weights:
            desk.train(desk.hand() + 1.0)
            desk.step()
        desk.hands.put_down(whole=True)
        desk.model(desk.batches[0].clone())  # as where a script evaluates without no_grad
        if weights[0] == weights[1]:
            assert desk.hands.turn.in_gradient == 0.5
            continue
        with pytest.raises(TrainingError, match="a copy of a batch"):
            assert desk.hands.turn.in_gradient
        desk.hand()
        desk.train(desk.batches[-1])
        assert desk.hands.turn.in_gradient == 0.125


def test_where_workers_may_leave_an_earlier_batch_is_refused() -> None:
    desk = weighed([0.5, 0.5])
    desk.hands.once = True
    for _ in range(2):
        desk.train(desk.hand())
        desk.step()
    desk.train(desk.batches[1])
    assert desk.hands.turn.in_gradient == 0.5
    desk.train(desk.batches[0])
    with pytest.raises(TrainingError, match="in an elastic run"):
        assert desk.hands.turn.in_gradient


def test_batches_that_are_gone_are_forgotten(desk: Desk) -> None:
    for _ in range(1000):
        desk.train(desk.hand())
        desk.step()
        desk.batches.clear()
    assert len(desk.hands._kept) <= 2 * module._ROOM


@pytest.mark.parametrize(
    ("batch", "fewer"),
    [
        (torch.ones(3, 2), None),
        (torch.ones(2, 2), 2),
        ((torch.ones(2, 2), torch.ones(2)), 2),
        ({"x": torch.ones(2, 2), "name": ["a", "b"]}, 2),
        ((torch.ones(2, 3), torch.ones(2, 3)), None),  # time first
        ((torch.ones(9, 2), torch.ones(3)), None),  # vertices of graphs, and their labels
        (torch.ones(9), None),  # tokens of all samples
        ([torch.ones(2, 5), torch.ones(2, 5), torch.ones(2, 5)], None),  # not stacked
        ("text", None),
    ],
)
def test_a_batch_with_samples_left_out_is_noticed(batch: Any, fewer: int | None) -> None:
    assert module._fewer(batch, BatchWeight(0, 0, 3, 0.5)) == fewer
