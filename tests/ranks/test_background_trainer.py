"""A predictor that learns does so in the background of a real run, and is gone with the session."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import nn

import uneven
from uneven.policy.core.views import Observation
from uneven.policy.predict import Lesson, Predictor, predictors
from uneven.testing import RankContext, ranks


class _Count(Lesson):
    def __init__(self, number: int) -> None:
        self._number = number

    def learn(self) -> Any:
        return self._number, threading.current_thread().name


class Pupil(Predictor):
    """Wants a lesson after every iteration, and notes who taught it."""

    learnt: list[tuple[int, str]] = []  # noqa: RUF012 - shared on purpose, to be read by the test

    def __init__(self) -> None:
        self._asked = 0

    def observe(self, seen: Observation) -> None:
        pass

    def predict(self, ahead: int = 1) -> float:
        return 1.0

    def lesson(self) -> Lesson:
        self._asked += 1
        return _Count(self._asked)

    def absorb(self, learnt: Any) -> None:
        Pupil.learnt.append(learnt)


@ranks(2, fresh=True)
def test_lessons_are_worked_off_one_after_another_in_the_background(me: RankContext) -> None:
    predictors.register("pupil", Pupil)
    session = uneven.Session(balance="lb-bsp:predictor=pupil")
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    session.setup(model, optimizer)
    inputs = torch.randn(400, 8)
    for x, _ in session.loader(torch.utils.data.TensorDataset(inputs, inputs), global_batch_size=4):
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    numbers = [number for number, _ in Pupil.learnt]
    assert numbers == list(range(1, len(numbers) + 1))
    assert numbers
    assert all(name.startswith("uneven-trainer") for _, name in Pupil.learnt)
    session.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("uneven-trainer")]


@ranks(2)
def test_the_shipped_one_that_learns_trains_along(me: RankContext) -> None:
    session = uneven.Session(balance="lb-bsp:predictor=narx")
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    session.setup(model, optimizer)
    inputs = torch.randn(1200, 8)
    shares = set()
    for x, _ in session.loader(torch.utils.data.TensorDataset(inputs, inputs), global_batch_size=4):
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        shares.add(sum(session.shares))
    assert shares == {4}
    session.close()
