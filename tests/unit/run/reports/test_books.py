"""What is read of the machine between iterations."""

from __future__ import annotations

import pytest
import torch

from uneven.policy.core.run_config import RunConfig
from uneven.policy.samples.order import Portion
from uneven.run.context.scribe import Scribe
from uneven.run.measure.meter import HostClock, Meter, MeterReading
from uneven.run.reports.step_accounting import StepAccounting
from uneven.runtime.world import discover


def timing(whole_s: float) -> MeterReading:
    return MeterReading(0, data_s=0.0, compute_s=whole_s, exchange_s=0.0)


def test_a_pause_with_a_batch_in_hand_is_not_taken_for_training() -> None:
    books = StepAccounting(0, Scribe(discover({}), None, RunConfig(), {}), torch.device("cpu"))
    try:
        assert books._trained_s([timing(0.1), timing(0.2)]) == pytest.approx(0.3)
        assert books._trained_s([timing(60.0)]) == pytest.approx(1.0), "ten times the shortest"
        assert books._trained_s([timing(0.1), timing(60.0)]) == pytest.approx(1.1)
        assert books._trained_s([]) == 0.0
        assert books._trained_s([timing(5.0), timing(5.0)]) == pytest.approx(2.0)
        assert books._trained_s([timing(5.0), timing(5.0)]) == pytest.approx(10.0), "they have become longer for good"
    finally:
        books.close()


class Listening:
    """A slow loop that notes which iterations its forecaster may learn from."""

    adapts = watches = False

    def __init__(self) -> None:
        self.learnt: list[int] = []

    def measured(self, timing: MeterReading, samples: int, control_s: float, load: object, late: bool) -> None:
        if not late:
            self.learnt.append(timing.iteration)


def test_nothing_is_learnt_of_speed_from_the_few_samples_that_end_an_epoch() -> None:
    books, slow = StepAccounting(0, Scribe(discover({}), None, RunConfig(), {}), torch.device("cpu")), Listening()
    try:
        for k, size in enumerate((64, 64, 20, 64, 64, 20, 48, 48)):
            books.meter.begin(k)
            books.meter.end()
            books.end(Portion(iteration=k, epoch=k // 3, start=0, size=size, shares=(size,)), size)
        books.read(slow)  # type: ignore[arg-type]
    finally:
        books.close()
    assert slow.learnt == [0, 1, 3, 4, 6, 7]


class LateClock(HostClock):
    """A device that has not reached the newest marks."""

    reached = False

    def passed(self, mark: tuple[float, float]) -> bool:
        return self.reached


def test_an_iteration_that_begins_again_before_the_device_has_ended_it_is_read_once() -> None:
    books, slow = StepAccounting(0, Scribe(discover({}), None, RunConfig(), {}), torch.device("cpu")), Listening()
    clock = LateClock()
    books.meter = Meter(clock)
    try:
        for _ in range(2):  # a batch for a look at the model, then the loop from the first batch on
            books.meter.begin(0)
            books.meter.end()
            books.end(Portion(iteration=0, epoch=0, start=0, size=64, shares=(64,)), 64)
            books.read(slow)  # type: ignore[arg-type]
        clock.reached = True
        books.read(slow)  # type: ignore[arg-type]
    finally:
        books.close()
    assert slow.learnt == [0]
