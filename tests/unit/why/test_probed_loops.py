"""The steps, samples and waits of loops as people write them, on two real workers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from uneven import journal
from uneven.policy.core.records import MeetingsRecord, StepRecord
from uneven.testing.ranks import RankContext, ranks
from uneven.why.start import attach

STEPS = 8
LAYERS = 10


def _batches(steps: int = STEPS) -> Iterator[torch.Tensor]:
    for (x,) in DataLoader(TensorDataset(torch.randn(steps * 4, 6)), batch_size=4):
        yield x


def _layers() -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(6, 6) for _ in range(LAYERS)))


def _recorded(me: RankContext, run: str) -> tuple[list[StepRecord], list[MeetingsRecord]]:
    torch.distributed.barrier()
    records = journal.read(Path(run)).ranks[me.rank]
    steps = [one for one in records if isinstance(one, StepRecord)]
    assert [one.iteration for one in steps] == list(range(STEPS - 1))  # the first has no beginning
    assert {one.batch for one in steps} == {4}
    assert all(one.exchange_s > 0.0 for one in steps)
    return steps, [one for one in records if isinstance(one, MeetingsRecord)]


@ranks(2)
def test_every_wait_of_fsdp2_counts_and_none_of_them_ends_a_step(me: RankContext, tmp_path: str) -> None:
    from torch.distributed.fsdp import fully_shard

    probe = attach(tmp_path)
    model = _layers()
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in _batches():
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    probe.close()
    _, meetings = _recorded(me, tmp_path)
    assert [len(one.seconds) >= 2 * LAYERS for one in meetings] == [True] * (STEPS - 1)


@ranks(2)
def test_functional_collectives_are_waited_for_where_their_result_is_used(me: RankContext, tmp_path: str) -> None:
    from torch.distributed._functional_collectives import all_reduce

    probe = attach(tmp_path)
    model = nn.Linear(6, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in _batches():
        model(x).sum().backward()
        reduced = [all_reduce(one.grad, "sum", torch.distributed.group.WORLD) for one in model.parameters()]
        for parameter, gradient in zip(model.parameters(), reduced, strict=True):
            parameter.grad = gradient / 2
        optimizer.step()
        optimizer.zero_grad()
    probe.close()
    _, meetings = _recorded(me, tmp_path)
    assert [len(one.seconds) for one in meetings] == [2] * (STEPS - 1)


@ranks(2)
def test_accumulation_with_no_sync_and_an_evaluation_with_its_own_loader(me: RankContext, tmp_path: str) -> None:
    probe = attach(tmp_path)
    model = nn.parallel.DistributedDataParallel(_layers())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    halves = DataLoader(TensorDataset(torch.randn(STEPS * 4, 6)), batch_size=2)
    for number, (x,) in enumerate(halves, start=1):
        with model.no_sync() if number % 2 else nullcontext():
            model(x).sum().backward()
        if number % 2:
            continue
        optimizer.step()
        optimizer.zero_grad()
        if number % 6 == 0:
            with torch.no_grad():
                for other in _batches(3):
                    model(other)
    probe.close()
    _, meetings = _recorded(me, tmp_path)
    assert not meetings  # one a step
