"""Run directories and checkpoints that earlier versions wrote are still read (``tests/data/written_before``)."""

from pathlib import Path

import pytest
import torch
from torch.utils.data import TensorDataset

import uneven
from uneven.journal import read
from uneven.policy.core.records import StepRecord
from uneven.testing.ranks import RankContext, ranks

WRITTEN = Path(__file__).parents[1] / "data" / "written_before"
POLICIES = {"bsp": "bsp", "bmuf": "bmuf:every=4"}


@pytest.mark.parametrize("name", POLICIES)
def test_a_journal_is_read(name: str) -> None:
    run = read(WRITTEN / name / "run")
    steps = [record for record in run.records() if isinstance(record, StepRecord)]
    assert sorted((one.rank, one.iteration) for one in steps) == [(rank, k) for rank in range(2) for k in range(12)]
    assert {one.batch for one in steps} == {6}


@pytest.mark.parametrize("name", POLICIES)
@ranks(2)
def test_a_checkpoint_is_loaded_and_training_continues(me: RankContext, name: str) -> None:
    saved = torch.load(WRITTEN / name / "checkpoint.pt", weights_only=True)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 2))
    with uneven.Session(sync=POLICIES[name]) as session:
        model, optimizer = session.setup(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
        data = TensorDataset(torch.randn(96, 4, generator=torch.Generator().manual_seed(1)), torch.arange(96) % 2)
        loader = session.loader(data, global_batch_size=12)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        session.load_state_dict(saved["session"])
        sizes = []
        for x, y in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            sizes.append(len(x))
    assert sizes == [6] * 4, "the second epoch was half done"
