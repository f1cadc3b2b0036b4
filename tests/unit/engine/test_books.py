"""What is read of the machine between iterations."""

from __future__ import annotations

import pytest
import torch

from uneven.config import RunConfig
from uneven.run.measure.meter import MeterReading
from uneven.run.reports.books import Books
from uneven.run.scribe import Scribe
from uneven.world import discover


def timing(whole_s: float) -> MeterReading:
    return MeterReading(0, data_s=0.0, compute_s=whole_s, exchange_s=0.0)


def test_a_pause_with_a_batch_in_hand_is_not_taken_for_training() -> None:
    books = Books(0, Scribe(discover({}), None, RunConfig(), {}), torch.device("cpu"))
    try:
        assert books._trained_s([timing(0.1), timing(0.2)]) == pytest.approx(0.3)
        assert books._trained_s([timing(60.0)]) == pytest.approx(1.0), "ten times the shortest"
        assert books._trained_s([timing(0.1), timing(60.0)]) == pytest.approx(1.1)
        assert books._trained_s([]) == 0.0
        assert books._trained_s([timing(5.0), timing(5.0)]) == pytest.approx(2.0)
        assert books._trained_s([timing(5.0), timing(5.0)]) == pytest.approx(10.0), "they have become longer for good"
    finally:
        books.close()
