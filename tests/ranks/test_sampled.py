"""Samplers and shards of a stream on several workers: the weights of one process on the same samples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from session_parts import Moving, N, X, assert_same, net, sgd, tensors
from torch.utils.data import IterableDataset, TensorDataset, WeightedRandomSampler

import uneven
from uneven.errors import ConfigError, DataError
from uneven.run.samples.sampled import SampledOrders
from uneven.testing.ranks import RankContext, ranks


def sampler() -> WeightedRandomSampler:
    return WeightedRandomSampler([1.0 + i % 3 for i in range(N)], num_samples=N)


def learn(model: Any, optimizer: Any, x: torch.Tensor, y: torch.Tensor) -> None:
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()


@ranks(3)
def test_a_sampler_trains_as_in_one_process_also_resumed(me: RankContext) -> None:
    x, y = tensors(torch.float64)
    alone = net().double()
    optimizer = sgd(alone)
    orders = SampledOrders(sampler(), batch_size=X, batched=False, size=N, seed=0)
    for epoch in range(2):
        for part in torch.from_numpy(orders(epoch)[:]).split(X):
            learn(alone, optimizer, x[part], y[part])

    model, state = net().double(), None
    optimizer = sgd(model)
    for most in (7, 99):  # the first session is left in the middle of the second epoch
        session = uneven.Session(balance=Moving())
        session.setup(model, optimizer)
        loader = session.loader(TensorDataset(x, y), X, sampler=sampler())
        if state is not None:
            session.load_state_dict(state)
        while loader.iteration < 10:
            for batch in loader:
                learn(model, optimizer, *batch)
                if loader.iteration == most:
                    break
            if loader.iteration == most:
                break
        state = session.state_dict()
        session.close()
    assert_same(model, alone, 1e-12)


class Shard(IterableDataset[Any]):
    """Every third sample, and no more of rank 2's after the first three."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.indices = [*range(rank, N, 3)][: 3 if rank == 2 else N]

    def __len__(self) -> int:
        return len(self.indices)

    def __iter__(self) -> Iterator[Any]:
        x, y = tensors(torch.float64)
        return ((x[i], y[i], i) for i in self.indices)


@ranks(3)
def test_shards_train_as_one_process_on_what_all_of_them_took(me: RankContext) -> None:
    session = uneven.Session(balance="static:shares=6/2/4")
    x, y = tensors(torch.float64)
    model, alone = net().double(), net().double()
    session.setup(model, optimizer := sgd(model))
    whole, taken = sgd(alone), []
    for inputs, labels, indices in session.loader(Shard(me.rank), X, sharded=True):
        shares = session.shares
        table: list[Any] = [None] * 3
        dist.all_gather_object(table, indices.tolist())
        union = [i for one, n in zip(table, shares, strict=True) for i in one[:n]]
        assert len(union) == min(X, 37 - len(taken))
        taken += union
        learn(model, optimizer, inputs, labels)
        learn(alone, whole, x[union], y[union])
    assert_same(model, alone, 1e-12)
    assert sorted(taken) == sorted(i for rank in range(3) for i in Shard(rank).indices)
    session.close()


@ranks(2)
def test_what_differs_by_rank_is_refused(me: RankContext) -> None:
    session = uneven.Session()
    session.setup(model := net(), optimizer := sgd(model))
    loader = session.loader(TensorDataset(*tensors()), X, sampler=[*range(me.rank, N)] + [0] * me.rank)
    with pytest.raises(DataError, match="stream or sampler of rank 1 differs from that of rank 0"):
        [learn(model, optimizer, x, y) for x, y in loader]
    session.close()
    session = uneven.Session(sync="asp", balance="even")
    with pytest.raises(ConfigError, match="use a policy whose workers step together"):
        session.loader(Shard(me.rank), X, sharded=True)
    with pytest.raises(DataError, match=r"an IterableDataset whose __len__ is its number"):
        session.loader(TensorDataset(*tensors()), X, sharded=True)
    session.close()
