"""A call rides on the gradients: everybody hears it in the same iteration, and the gradients do not change."""

from __future__ import annotations

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


def test_where_every_bucket_is_large_nothing_is_copied() -> None:
    rider = Rider()
    large = torch.zeros((1 << 18) + 1)
    for _ in range(3):
        rider.calling = True
        assert rider.mount(large) is large
        rider.dismount()
        assert rider.take() is None


def test_what_was_heard_is_told_once() -> None:
    rider, bucket = Rider(), torch.ones(4)
    rider.mount(bucket)
    rider.dismount()
    rider.calling = True
    carried = rider.mount(bucket)
    assert carried.tolist() == [1, 1, 1, 1, 1]
    carried.mul_(3)
    rider.dismount()
    assert bucket.tolist() == [3, 3, 3, 3]
    assert [rider.take(), rider.take()] == [True, False]
