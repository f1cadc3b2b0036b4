"""A call rides on the gradients: everybody hears it in the same iteration, and the gradients do not change."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import uneven
from uneven.testing import RankContext, ranks
from uneven.transport.rider import Rider


def _model(kind: str) -> nn.Module:
    torch.manual_seed(1)
    if kind == "one bucket":
        return nn.Linear(8, 4)
    if kind == "half precision":
        return nn.Linear(8, 4).to(torch.bfloat16)
    return nn.Sequential(nn.Linear(8, 700), nn.Linear(700, 700), nn.Linear(700, 4))  # several buckets


@pytest.mark.parametrize("kind", ["one bucket", "half precision", "several buckets"])
@ranks(3)
def test_one_calls_and_all_hear_it_in_that_iteration(me: RankContext, kind: str) -> None:
    session = uneven.Session(balance="even")
    model = _model(kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    session.setup(model, optimizer, bucket_cap_mb=1)
    dtype = next(model.parameters()).dtype
    inputs = torch.randn(96, 8).to(dtype)
    loader = session.loader(torch.utils.data.TensorDataset(inputs, inputs), batch_size=12, shuffle=False)
    carrier = session._loop.carrier
    assert carrier is not None
    rider = carrier.rider
    assert rider is not None
    heard = []
    for iteration, (x, _) in enumerate(loader):
        rider.calling = me.rank == 1 and iteration in (3, 6)
        model(x).float().square().mean().backward()
        heard.append(rider.heard)
        reference = _model(kind)
        whole = inputs[12 * iteration : 12 * (iteration + 1)]
        reference(whole).float().square().mean().backward()
        for mine, theirs in zip(model.parameters(), reference.parameters(), strict=True):
            tolerance = 2e-2 if dtype == torch.bfloat16 else 1e-5
            torch.testing.assert_close(mine.grad, theirs.grad, rtol=tolerance, atol=tolerance)
        optimizer.step()
        optimizer.zero_grad()
    assert heard == [iteration in (3, 6) for iteration in range(8)]
    session.close()


def _everybodys(rows: list[list[float]], bucket_of: Callable[[], torch.Tensor]) -> list[Any]:
    """Ride twice, so that it is known on what; what each rank is told in the end."""
    riders = [Rider(rank, len(rows)) for rank in range(len(rows))]
    passengers = []
    for turn in range(2):
        if turn == 1:
            passengers = [rider.carry(row) for rider, row in zip(riders, rows, strict=True)]
        assert all(one is None or one.result() is None for one in passengers), "not before the exchange"
        carried = [rider.mount(bucket_of()) for rider in riders]
        total = torch.stack(carried).sum(0)
        for one in carried:
            one.copy_(total)
        for rider in riders:
            rider.dismount()
    return [None if one is None else one.result() for one in passengers]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_arrive_with_48_bits(dtype: torch.dtype) -> None:
    rows = [[2.0**47 + 1, 1 / 3, -0.1], [math.nan, math.inf, 1e300], [0.0, 1e-30, 7.0]]
    told = _everybodys(rows, lambda: torch.ones(5, dtype=dtype))
    for one in told:
        np.testing.assert_array_equal(one, told[0])
        assert one[0, 0] == rows[0][0]
        np.testing.assert_allclose(one[[0, 2]], np.array(rows)[[0, 2]], rtol=2.0**-46)
        assert not (np.abs(one[1]) < 1e300).any(), "what was absurd stays it"


def test_rows_do_not_ride_on_numbers_of_half_precision_nor_before_it_is_known_on_what() -> None:
    assert _everybodys([[1.0], [2.0]], lambda: torch.ones(5, dtype=torch.bfloat16)) == [None, None]
    assert Rider(0, 2).carry([1.0]) is None


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@ranks(2)
def test_reports_ride_where_they_can(me: RankContext, dtype: str) -> None:
    """The first one is gathered, as it is not known yet on which bucket to ride."""
    session = uneven.Session(balance="lb-bsp", budget=0.4)
    model = nn.Linear(8, 4).to(getattr(torch, dtype))
    session.setup(model, torch.optim.SGD(model.parameters(), lr=0.0))
    transport = session._loop._connection.transport
    gather, gathered, decided = transport.gather, [], []

    def counted(row: Sequence[float]) -> Any:
        gathered.append(row)
        return gather(row)

    loader = session.loader(torch.utils.data.TensorDataset(torch.randn(960, 8)), batch_size=12)
    slow = session._loop._slow
    assert slow is not None
    decide = slow._decide

    def deciding(iteration: int, table: Any) -> None:
        decided.append(iteration)
        decide(iteration, table)

    transport.gather, slow._decide = counted, deciding
    for count, (x,) in enumerate(loader):
        with session.no_sync() if count % 3 == 0 else nullcontext():
            model(x.to(model.weight.dtype)).float().square().mean().backward()
    assert len(decided) >= 4, "those at the start do not mind the budget"
    if dtype == "float32":
        assert len(gathered) <= 1
        assert all(iteration % 3 for iteration in decided[1:]), "nothing rides where nothing is exchanged"
    else:
        assert len(gathered) >= len(decided)
    session.close()


def test_where_every_bucket_is_large_nothing_is_copied() -> None:
    rider = Rider(0, 3)
    large = torch.zeros((1 << 18) + 1)
    for _ in range(3):
        rider.calling = True
        assert rider.mount(large) is large
        rider.dismount()
        assert rider.take() is None


def test_what_was_heard_is_told_once() -> None:
    rider, bucket = Rider(0, 3), torch.ones(4)
    rider.mount(bucket)
    rider.dismount()
    rider.calling = True
    carried = rider.mount(bucket)
    assert carried.tolist() == [1, 1, 1, 1, 1]
    carried.mul_(3)
    rider.dismount()
    assert bucket.tolist() == [3, 3, 3, 3]
    assert [rider.take(), rider.take()] == [True, False]
