"""Steps of a session whose exchanges are made beside the training: none is lost, wherever the loop is interrupted."""

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
from uneven.errors import TrainingError
from uneven.policy.core.records import StepRecord
from uneven.run.replicas.replica_sync import ReplicaSync
from uneven.run.step.checkpoint import unpack
from uneven_bench.inside import inside

SAMPLES, BATCH = 48, 2
STEPS = SAMPLES // BATCH


class Trained:
    """A session of one worker, and its loop."""

    def __init__(self, sync: str, directory: Path) -> None:
        torch.manual_seed(3)
        self.directory = directory
        self.session = uneven.Session(sync=sync, balance="even", run_dir=directory)
        self.model = nn.Linear(3, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.session.setup(self.model, self.optimizer)
        data = TensorDataset(torch.arange(3.0 * SAMPLES).reshape(SAMPLES, 3) / SAMPLES, torch.arange(SAMPLES) % 2)
        self.loader = self.session.loader(data, BATCH)
        self.agreement = inside(self.session).sync

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
    assert [one.iteration for one in records] == list(range(2 * STEPS))
    assert [one.epoch for one in records] == [0] * STEPS + [1] * STEPS
    assert [one.ended_at_s for one in records] == sorted(one.ended_at_s for one in records)
    assert len({one.ended_at_s for one in records}) > 20, "each has its own time"
    assert all(one.compute_s > 0.0 and one.data_s >= 0.0 and one.local_cpu_s > 0.0 for one in records)


@among_workers_and_through_a_copy
def test_to_evaluate_to_save_or_to_leave_counts_every_step(tmp_path: Path, of: str) -> None:
    trained = Trained(f"shadow:{of}", tmp_path)
    clocks = []

    def look() -> None:
        clocks.append(unpack(trained.session.state_dict()).agreement["clock"])
        with trained.session.evaluation_model():
            clocks.append(trained.agreement.clock)

    trained.epoch(at=11, do=look, leave=13)
    assert (clocks, trained.agreement.clock) == ([11, 11], 14), "the step in hand is not made yet"
    trained.epoch()
    assert trained.agreement.clock == trained.loader.iteration == 14 + STEPS
    assert [one.iteration for one in trained.records()] == list(range(14 + STEPS))


@pytest.mark.parametrize("of", ["bmuf:every=1", "easgd"])
def test_nothing_is_trained_inside_evaluated_by_a_loop_that_was_begun_outside(tmp_path: Path, of: str) -> None:
    trained = Trained(f"shadow:{of}", tmp_path)
    batches = iter(trained.loader)
    for _ in range(4):
        next(batches)
    with trained.session.evaluation_model(), pytest.raises(TrainingError, match="train outside of it"):
        next(batches)
    trained.session.close()


def test_the_shadow_hears_of_every_step_of_short_epochs_and_of_no_pause(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trained = Trained("shadow:ma", tmp_path)
    told: list[float] = []
    assert isinstance(trained.agreement, ReplicaSync)
    budget = trained.agreement._thread._budget
    monkeypatch.setattr(budget, "stepped", lambda took_s, quiet_s: told.append(took_s))
    for leave in (-1, 4, 0, -1):
        trained.epoch(leave=leave)
    assert len(told) == STEPS + 5 + 1 + STEPS
    trained.session.close()
