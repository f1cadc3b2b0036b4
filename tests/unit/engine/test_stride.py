"""Steps that are taken in together: how many, and that nothing is lost of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import uneven
from uneven import journal
from uneven.core.records import StepRecord
from uneven.engine.agree import Agreement
from uneven.engine.state import unpack
from uneven.engine.stride import Pace
from uneven.errors import TrainingError

SAMPLES, BATCH = 48, 2
STEPS = SAMPLES // BATCH


def test_a_stride_has_sixteen_steps_at_most_and_takes_less_than_a_tenth_of_a_second_of_the_processor() -> None:
    pace = Pace()
    pace.start(100, 5.0, 50.0)
    assert pace.next(102, 5.02, 50.1) == 7  # a hundredth of a second each
    assert pace.next(109, 5.021, 50.2) == 16
    assert pace.next(117, 5.821, 51.2) == 1  # a tenth each
    pace.start(118, 9.0, 60.0)  # whatever came in between
    assert pace.next(119, 9.02, 60.03) == 3
    assert pace.next(120, 9.02, 60.06) == 1, "a clock that stands still tells nothing"
    assert pace.next(122, 9.03, 60.56) == 4, "and less than a second by the clock"


class Trained:
    """A session of one worker, and its loop."""

    def __init__(self, sync: str, directory: Path) -> None:
        torch.manual_seed(3)
        self.directory = directory
        self.session = uneven.Session(sync=sync, balance="even", journal=directory)
        self.model = nn.Linear(3, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.session.setup(self.model, self.optimizer)
        data = TensorDataset(torch.arange(3.0 * SAMPLES).reshape(SAMPLES, 3) / SAMPLES, torch.arange(SAMPLES) % 2)
        self.loader = self.session.loader(data, BATCH)
        self.looks: list[int] = []  # after how many steps

        def long(steps: int, spent_s: float, now_s: float) -> int:
            self.looks.append(steps)
            return 8

        assert self.session._loop.agreement is not None
        self.agreement = self.session._loop.agreement
        self.session._loop._pace.next = long  # type: ignore[method-assign] # as long as they get

    def epoch(self, at: int = -1, do: Any = None, leave: int = -1) -> None:
        for number, (x, y) in enumerate(self.loader):
            if number == at:
                do()
            F.cross_entropy(self.model(x), y).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            if number == leave:
                break

    def records(self) -> list[StepRecord]:
        """Of all steps, once the session is closed."""
        self.session.close()
        return [one for one in journal.read(self.directory).ranks[0] if isinstance(one, StepRecord)]


among_workers_and_through_a_copy = pytest.mark.parametrize("of", ["ma", "easgd"])


@among_workers_and_through_a_copy
def test_every_step_is_in_the_journal_in_its_place(tmp_path: Path, of: str) -> None:
    trained = Trained(f"shadow:{of}", tmp_path)
    for _ in range(2):
        trained.epoch()
    records = trained.records()
    assert trained.looks == [1, 9, 17, STEPS + 1, STEPS + 9, STEPS + 17]
    assert [one.iteration for one in records] == list(range(2 * STEPS))
    assert [one.epoch for one in records] == [0] * STEPS + [1] * STEPS
    assert [one.ended_at_s for one in records] == sorted(one.ended_at_s for one in records)
    assert len({one.ended_at_s for one in records}) > 20, "each has its own time"
    assert all(one.compute_s > 0.0 and one.data_s >= 0.0 and one.local_cpu_s > 0.0 for one in records)


@among_workers_and_through_a_copy
@pytest.mark.parametrize("at", range(9, 19))
def test_a_state_in_the_midst_of_a_stride_is_that_of_one_who_takes_steps_one_by_one(
    tmp_path: Path, at: int, of: str
) -> None:
    found: dict[str, Any] = {}
    for sync in (f"shadow:{of}", f"shadow:load=1:{of}"):
        trained = Trained(sync, tmp_path / sync)
        trained.epoch(at=at, do=lambda t=trained, s=sync: found.update({s: unpack(t.session.state_dict())}))
        trained.session.close()
    strides, single = found.values()
    assert strides.agreement["clock"] == single.agreement["clock"] == at, "the step in hand is not made yet"
    assert strides.loader == single.loader


@among_workers_and_through_a_copy
def test_to_evaluate_or_to_leave_ends_a_stride(tmp_path: Path, of: str) -> None:
    trained = Trained(f"shadow:{of}", tmp_path)
    clocks = []

    def evaluate() -> None:
        with trained.session.evaluated():
            clocks.append(trained.agreement.clock)

    trained.epoch(at=11, do=evaluate, leave=13)
    assert (clocks, trained.agreement.clock) == ([11], 14)
    trained.epoch()
    assert trained.agreement.clock == 14 + STEPS, "the end of an epoch ends a stride"
    assert trained.loader.iteration == 14 + STEPS
    assert [one.iteration for one in trained.records()] == list(range(14 + STEPS))


@among_workers_and_through_a_copy
def test_how_late_an_exchange_was_counts_the_steps_that_wait(tmp_path: Path, of: str) -> None:
    trained = Trained(f"shadow:{of}", tmp_path)
    one, now = trained.agreement, []
    trained.epoch(at=12, do=lambda: now.append((one.clock, one.clock + len(one.waiting))))
    ((taken_in, told),) = now
    assert taken_in < told == 12
    trained.session.close()


@pytest.mark.parametrize("of", ["bmuf:every=1", "easgd"])
def test_nothing_is_trained_inside_evaluated_by_a_loop_that_was_begun_outside(tmp_path: Path, of: str) -> None:
    trained = Trained(f"shadow:{of}", tmp_path)
    batches = iter(trained.loader)
    for _ in range(4):
        next(batches)
    with trained.session.evaluated(), pytest.raises(TrainingError, match="train outside of it"):
        next(batches)
    trained.session.close()


def test_the_shadow_hears_of_every_step_of_short_epochs(tmp_path: Path) -> None:
    trained = Trained("shadow:ma", tmp_path)
    told: list[int] = []
    assert isinstance(trained.agreement, Agreement)
    shadow = trained.agreement._exchanges._shadow
    stepped = shadow.stepped

    def hear() -> None:
        told.append(shadow._untold)
        stepped()

    shadow.stepped = hear  # type: ignore[method-assign]
    for leave in (-1, 4, -1):
        trained.epoch(leave=leave)
    assert sum(told) == STEPS + 5 + STEPS
    trained.session.close()
