"""Batches that are divided by cost: the weights of one process, and speeds in what samples cost."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from session_parts import N, X, assert_same, batches, net, own_time, sgd, tensors
from torch.distributed import barrier
from torch.utils.data import TensorDataset

import uneven
from uneven.errors import ConflictError, DataError
from uneven.journal import read
from uneven.policy.core.records import StepRecord
from uneven.testing.ranks import RankContext, ranks

COSTS = 1.0 + torch.arange(N) % 7


@ranks(3)
def test_weights_are_those_of_one_process(me: RankContext, tmp_path: Path) -> None:
    for padded in (False, True):
        session = uneven.Session(balance="static:shares=6/2/4", run_dir=Path(tmp_path, str(padded)))
        model = net().double()
        session.setup(model, optimizer := sgd(model))
        loader = session.loader(TensorDataset(*tensors(torch.float64)), X, cost=COSTS, padded=padded)
        for _ in range(2):
            for x, y in loader:
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()
        session.close()
        alone = net().double()
        optimizer = sgd(alone)
        for x, y in batches(2, torch.float64):
            F.cross_entropy(alone(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        assert_same(model, alone, 1e-12)
    barrier()
    steps = [one for one in read(Path(tmp_path, "False")).records() if isinstance(one, StepRecord)]
    assert all(one.cost is not None for one in steps)
    assert sum(one.batch for one in steps) == 2 * N
    assert sum(one.cost or 0 for one in steps) == pytest.approx(2 * N, rel=0.1)
    barrier()


@ranks(2)
def test_speeds_are_those_of_costs(me: RankContext) -> None:
    """Time goes by cost alone, at the same pace on both: half of the cost is each one's, whatever the samples are."""
    with own_time() as spend:
        session = uneven.Session(balance="lb-bsp")
        model = torch.nn.Linear(1, 1)
        session.setup(model, optimizer := sgd(model))
        costs = torch.where(torch.arange(600) % 10 == 0, 20.0, 1.0)
        loader = session.loader(TensorDataset(costs[:, None]), 30, cost=costs)
        for (x,) in loader:
            spend(2e-3 * float(x.sum()))
            model(x).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        assert session.next_shares == pytest.approx((15, 15), abs=2)
        session.close()


@ranks(2)
def test_costs_that_differ_between_ranks_are_refused(me: RankContext) -> None:
    session = uneven.Session()
    with pytest.raises(ConflictError, match="cost of its samples"):
        session.loader(TensorDataset(*tensors()), X, cost=COSTS + me.rank)
    session.close()
    session = uneven.Session(sync="asp", balance="even")
    with pytest.raises(DataError, match="at each worker's own pace"):
        session.loader(TensorDataset(*tensors()), X, cost=COSTS)
    session.close()
