"""Where the time of a step goes, as the journal has it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch.distributed as dist
import torch.nn.functional as F
from session_parts import X, net, tensors
from torch.utils.data import TensorDataset

import uneven
from uneven import journal
from uneven.policy.core.records import StepRecord
from uneven.testing.ranks import RankContext, ranks


def work(seconds: float) -> None:
    """Compute for so much processor time."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


@pytest.mark.alone
@ranks(2)
def test_who_computes_longer_waits_less(me: RankContext, tmp_path: str) -> None:
    with uneven.Session(balance="even", run_dir=tmp_path) as session:
        model = net()
        session.setup(model)
        loader = session.loader(TensorDataset(*tensors()), X)  # in which ranks meet, and wait for who is late
        began = time.perf_counter()
        for x, y in loader:
            work(0.06 if me.rank == 1 else 0.001)
            F.cross_entropy(model(x), y).backward()
            model.zero_grad()
        took = time.perf_counter() - began
    dist.barrier()
    steps = [record for record in journal.read(Path(tmp_path)).ranks[me.rank] if isinstance(record, StepRecord)]
    assert [step.iteration for step in steps] == [0, 1, 2, 3, 4]
    # Data, compute and exchange tile the loop: all but the start of the loader lies in one of them.
    measured = sum(step.data_s + step.compute_s + step.exchange_s for step in steps)
    assert 0.8 * took <= measured <= took
    iterations = journal.iterations(journal.read(Path(tmp_path)).records())
    assert len(iterations) == 5
    waits = [sum(one.timings[rank].wait_s for one in iterations[1:]) for rank in range(2)]
    computes = [sum(one.timings[rank].compute_s for one in iterations[1:]) for rank in range(2)]
    assert waits[0] > waits[1]
    assert computes[1] > computes[0]
