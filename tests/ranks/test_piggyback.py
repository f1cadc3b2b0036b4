"""A call is piggybacked on the gradients: all ranks hear it in the same iteration, and the gradients do not change."""

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
from uneven.policy.control import Report
from uneven.run.lines.communicator import RoundPlace
from uneven.run.lines.control_words import NOTHING, BehindBucket, ControlWords, Heard
from uneven.testing import RankContext, ranks
from uneven.testing.staging import staging_forced
from uneven_bench.inside import inside


def _model(kind: str) -> nn.Module:
    torch.manual_seed(1)
    if kind == "one bucket":
        return nn.Linear(8, 4)
    if kind == "half precision":
        return nn.Linear(8, 4).to(torch.bfloat16)
    return nn.Sequential(nn.Linear(8, 700), nn.Linear(700, 700), nn.Linear(700, 4))  # several buckets


@pytest.mark.parametrize("kind", ["one bucket", "half precision", "several buckets", "host memory"])
@ranks(3)
def test_one_calls_and_all_hear_it_in_that_iteration(me: RankContext, kind: str) -> None:
    session = uneven.Session(balance="even")
    model = _model(kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with staging_forced() if kind == "host memory" else nullcontext():
        session.setup(model, optimizer, bucket_cap_mb=1)
    dtype = next(model.parameters()).dtype
    inputs = torch.randn(96, 8, generator=torch.Generator().manual_seed(0)).to(dtype)
    loader = session.loader(torch.utils.data.TensorDataset(inputs, inputs), global_batch_size=12, shuffle=False)
    rounds = inside(session).gradients.rounds
    words = inside(session).gradients.words
    assert words is not None
    heard, own = [], [0.1 * field for field in range(1, len(Report._fields))]
    for iteration, (x, _) in enumerate(loader):
        if me.rank == 1 and iteration in (3, 6):
            words.call([float(iteration), *own])
        model(x).float().square().mean().backward()
        heard.append(words.take())
        reference = _model(kind)
        whole = inputs[12 * iteration : 12 * (iteration + 1)]
        reference(whole).float().square().mean().backward()
        for mine, theirs in zip(model.parameters(), reference.parameters(), strict=True):
            tolerance = 2e-2 if dtype == torch.bfloat16 else 1e-5
            torch.testing.assert_close(mine.grad, theirs.grad, rtol=tolerance, atol=tolerance)
        optimizer.step()
        optimizer.zero_grad()
    assert [one is not None and one.called for one in heard] == [iteration in (3, 6) for iteration in range(8)]
    for iteration in (3, 6):
        assert heard[iteration] is not None
        rows = heard[iteration].rows
        assert rows == ({} if kind == "half precision" else {1: pytest.approx([float(iteration), *own], rel=2.0**-40)})
    behind = getattr(rounds, "_rounds", rounds)._behind
    assert behind._bucket is not None
    assert not behind._apart, "the bucket, DDP's own or its copy, has been made longer"
    session.close()


AT = RoundPlace("", 1, 5)


class Behind(ControlWords):
    """One worker's words, placed behind buckets."""

    def __init__(self, rank: int, size: int, length: int) -> None:
        super().__init__(rank, size, length)
        self.behind = BehindBucket(self)


def _everybodys(rows: list[list[float]], bucket_of: Callable[[], torch.Tensor]) -> list[Any]:
    """Ride twice, so that it is known on what; what each rank is told in the end."""
    words = [Behind(rank, len(rows), len(rows[0])) for rank in range(len(rows))]
    pending = []
    for turn in range(2):
        if turn == 1:
            pending = [each.carry(row) for each, row in zip(words, rows, strict=True)]
        assert all(one is None or one.result() is None for one in pending), "not before the exchange"
        carried = [each.behind.attach(bucket_of(), AT) for each in words]
        total = torch.stack(carried).sum(0)
        for one in carried:
            one.copy_(total)
        for each in words:
            each.behind.collect()
    return [None if one is None else one.result() for one in pending]


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
    assert Behind(0, 2, 1).carry([1.0]) is None


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@ranks(2)
def test_reports_ride_where_they_can(me: RankContext, dtype: str) -> None:
    """The first one is gathered, as it is not known yet which bucket to extend."""
    session = uneven.Session(balance="lb-bsp", overhead_budget=0.4)
    model = nn.Linear(8, 4).to(getattr(torch, dtype))
    session.setup(model, torch.optim.SGD(model.parameters(), lr=0.0))
    transport = session._loop.context.connection.transport
    gather, gathered, decided = transport.gather, [], []

    def counted(row: Sequence[float]) -> Any:
        gathered.append(row)
        return gather(row)

    loader = session.loader(torch.utils.data.TensorDataset(torch.randn(960, 8)), global_batch_size=12)
    slow = session._loop.reports._slow
    assert slow is not None
    take_in = slow._controller.gathered

    def deciding(table: Any) -> None:
        decided.append(count)
        take_in(table)

    transport.gather, slow._controller.gathered = counted, deciding
    count = 0
    for count, (x,) in enumerate(loader):
        with session.no_sync() if count % 3 == 0 else nullcontext():
            model(x.to(model.weight.dtype)).float().square().mean().backward()
    assert len(decided) >= 4, "those at the start do not mind the budget"
    if dtype == "float32":
        assert len(gathered) <= 1
        assert all(iteration % 3 for iteration in decided[1:]), "nothing is piggybacked where nothing is exchanged"
    else:
        assert len(gathered) >= len(decided)
    session.close()


def test_a_bucket_is_made_longer_and_everything_that_looks_at_it_follows() -> None:
    words, bucket = [Behind(0, 1, 2)], torch.arange(6.0)
    gradient = bucket[2:4].view(1, 2)
    _exchange(words, bucket, then=None)
    assert words[0].behind.attach(bucket, AT).tolist() == [0, 1, 2, 3, 4, 5, 0, 0, 0, 0, 0, 0]
    gradient.fill_(7.0)
    words[0].behind.collect()
    assert bucket.tolist() == [0, 1, 7, 7, 4, 5]
    (carried,) = _exchange(words, bucket, then=None)
    assert carried.data_ptr() == bucket.data_ptr() == gradient.data_ptr() - 2 * bucket.element_size()
    other = torch.arange(3.0)  # as when DDP makes its buckets anew
    (carried,) = _exchange(words, other, then=None)
    assert (carried.tolist()[:3], carried.data_ptr()) == ([0, 1, 2], other.data_ptr())


@pytest.mark.parametrize("part", ["looked at by an array", "a part of something longer"])
def test_one_that_cannot_be_is_copied_and_everybody_hears_as_much(part: str) -> None:
    words, longer = [Behind(rank, 2, 1) for rank in range(2)], torch.arange(9.0)
    if part == "a part of something longer":
        buckets = [torch.ones(4), longer[:4]]
    else:
        buckets = [torch.ones(4), torch.arange(4.0)]
        kept = buckets[1].numpy()
    for turn in range(3):
        if turn == 1:
            words[0].call([5.0])
        carried = [each.behind.attach(bucket, AT) for each, bucket in zip(words, buckets, strict=True)]
        total = torch.stack(carried).sum(0)
        for each, one in zip(words, carried, strict=True):
            one.copy_(total)
            each.behind.collect()
        assert buckets[1].tolist() == buckets[0].tolist()
        heard = words[1].take()
        assert heard is not None
        assert heard.rows == ({0: [5.0]} if turn == 1 else {})
        buckets[0].fill_(1.0)
        buckets[1].copy_(torch.arange(4.0))
    assert carried[1].data_ptr() != buckets[1].data_ptr()
    assert longer[4:].tolist() == [4.0, 5.0, 6.0, 7.0, 8.0]
    if part == "looked at by an array":
        assert kept.tolist() == [0.0, 1.0, 2.0, 3.0], "the user's array looks at the same numbers as before"


def test_rows_of_nothing_but_zeros_arrive_too() -> None:
    words, bucket = [Behind(rank, 2, 2) for rank in range(2)], torch.ones(4)
    _exchange(words, bucket)
    pending = [each.carry([0.0, 0.0]) for each in words]
    _exchange(words, bucket)
    for one in pending:
        assert one is not None
        rows = one.result()
        assert rows is not None
        assert not rows.any()


@ranks(2)
def test_gradients_that_the_user_looks_at_through_numpy_stay_right(me: RankContext) -> None:
    session = uneven.Session(balance="even")
    torch.manual_seed(1)
    model = nn.Linear(8, 4)
    model, optimizer = session.setup(model, torch.optim.SGD(model.parameters(), lr=0.0))
    inputs = torch.randn(48, 8)
    seen = []
    for (x,) in session.loader(torch.utils.data.TensorDataset(inputs), global_batch_size=12, shuffle=False):
        model(x).square().mean().backward()
        assert model.weight.grad is not None
        if me.rank == 1:  # on one worker alone
            seen.append((model.weight.grad.numpy(), model.weight.grad.numpy().copy(), model.weight.grad))
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
    for array, copy, gradient in seen:
        assert array.base is not None or array.flags.owndata is False
        assert copy.any()
        np.testing.assert_array_equal(array, gradient.numpy())
    session.close()


def test_what_was_heard_is_told_once() -> None:
    words, bucket = [Behind(rank, 3, 2) for rank in range(3)], torch.ones(4)
    _exchange(words, bucket)
    words[1].call([5.0, 1 / 3])
    carried = _exchange(words, bucket)
    assert carried[1].tolist()[:6] == [3, 3, 3, 3, 0, 1], "the marks cancel, and one has called"
    assert len(carried[1]) == 4 + 2 + 2 * 3 * 2, "there is a slot for every rank"
    first, second = words[0].take(), words[0].take()
    assert first is not None
    assert first.called
    assert first.rows == {1: [5.0, pytest.approx(1 / 3, rel=2.0**-46)]}
    assert second == NOTHING
    _exchange(words, bucket)
    assert words[1].take() == first, "not told before"
    assert words[1].take() == NOTHING, "no worker has called since"


def test_of_who_calls_while_all_report_the_report_is_heard() -> None:
    words, bucket = [Behind(rank, 2, 1) for rank in range(2)], torch.ones(4)
    _exchange(words, bucket)
    words[1].call([5.0])
    pending = [each.carry([float(rank + 7)]) for rank, each in enumerate(words)]
    _exchange(words, bucket)
    for each, own in zip(words, pending, strict=True):
        assert each.take() == Heard(True, {})
        assert own is not None
        rows = own.result()
        assert rows is not None
        assert rows.tolist() == [[7.0], [8.0]]


def test_an_exchange_without_the_smallest_bucket_says_nothing() -> None:
    (words,), large, small = [Behind(0, 1, 1)], torch.ones(9), torch.ones(4)
    for buckets in ([large, small], [large, small], [large]):
        words.call([5.0])
        for bucket in buckets:
            words.behind.attach(bucket, AT)
        words.behind.collect()
        heard = words.take()
    assert heard == NOTHING


def _exchange(words: list[Behind], bucket: torch.Tensor, then: float | None = 1.0) -> list[torch.Tensor]:
    """What each carried, summed up; ``then`` is what the bucket holds afterwards."""
    carried = [each.behind.attach(bucket, AT) for each in words]
    total = torch.stack(carried).sum(0)
    for each, one in zip(words, carried, strict=True):
        one.copy_(total)
        each.behind.collect()
    if then is not None:
        bucket.fill_(then)
    return carried
