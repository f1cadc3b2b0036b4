"""Iterations that are finished together: the weights of one process, whoever took what."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from session_parts import N, assert_same, net, sgd, tensors
from torch import nn
from torch.utils.data import IterableDataset, TensorDataset

import uneven
from uneven.errors import ConfigError, TrainingError
from uneven.journal import read
from uneven.policy.core.records import StepRecord
from uneven.run.loops.piece_taking import PieceCounter
from uneven.testing.ranks import RankContext, ranks

X = 24

EACH_S = 0.002
"""That a sample takes on the slow worker."""


def data() -> TensorDataset:
    x, y = tensors(torch.float64)
    return TensorDataset(x, F.one_hot(y, 3).double(), torch.arange(N))


def normed() -> nn.Module:
    return nn.Sequential(net().double(), nn.BatchNorm1d(3, affine=False).double())


def one_process(epochs: int) -> nn.Module:
    model = net().double()
    optimizer = sgd(model)
    for _ in range(epochs):
        for x, y, _ in zip(*(one.split(X) for one in data().tensors), strict=True):
            F.mse_loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    return model


def train(
    session: uneven.Session, model: nn.Module, epochs: int, slow: bool, least: int = 1, **more: Any
) -> list[list[int]]:
    """The samples of each iteration that this worker did."""
    done: list[list[int]] = []
    optimizer = sgd(model)
    session.setup(model, optimizer, **more)
    loader = session.loader(data(), X, shuffle=False, min_batch=least, together=True)
    for _ in range(epochs):
        for batch in loader:
            done.append([])
            for x, y, index in session.microbatches(batch):
                if slow:
                    time.sleep(EACH_S * len(x))  # a slow worker: what it computes would be over at once
                F.mse_loss(model(x), y).backward()
                done[-1] += index.tolist()
            optimizer.step()
            optimizer.zero_grad()
    return done


@pytest.mark.parametrize("unused", [False, True])
@ranks(3)
def test_weights_are_those_of_one_process_and_each_sample_is_used_once(
    me: RankContext, tmp_path: str, unused: bool
) -> None:
    """Rank 1 is slow, and its balancer gives it the most."""
    with uneven.Session(balance="static:shares=6/10/2", run_dir=tmp_path) as session:
        model = net().double()
        done = train(session, model, 2, me.rank == 1, find_unused_parameters=unused)
    assert_same(model, one_process(2), 1e-12)
    everybody: list[Any] = [None] * 3
    torch.distributed.all_gather_object(everybody, done)
    whole = [sorted({one for mine in same for one in mine}) for same in zip(*everybody, strict=True)]
    assert whole == [part.tolist() for part in torch.arange(N).split(X)] * 2
    steps = [one for one in read(Path(tmp_path)).ranks[me.rank] if isinstance(one, StepRecord)]
    assert [one.batch for one in steps if one.global_batch == X] == [len(done[number]) for number in (0, 1, 3, 4)]
    if me.rank == 1:
        assert min(one.batch for one in steps if one.global_batch == X) < X * 10 // 18


@ranks(2)
def test_batch_norm_knows_the_samples_of_all(me: RankContext) -> None:
    """Each pass has its own statistics; the mean over workers is by what each has really done."""
    model = normed()
    with uneven.Session(balance="static:shares=1/3") as session:
        done = train(session, model, 1, me.rank == 1, 2)
    assert min(len(mine) for mine in done) > 1
    found = [torch.zeros_like(model[1].running_mean) for _ in range(2)]  # type: ignore[index]
    torch.distributed.all_gather(found, model[1].running_mean)  # type: ignore[index]
    assert torch.equal(*found)
    assert found[0].abs().max() > 0


@ranks(1)
def test_alone(me: RankContext) -> None:
    model = net().double()
    with uneven.Session() as session:
        train(session, model, 3, False)
    assert_same(model, one_process(3), 1e-12)


def test_what_stands_at_the_counter() -> None:
    nobody = PieceCounter("")
    assert (nobody.start, nobody.here) == (0, {})
    one = nobody.moved(2, 5, {2: 31.25})
    both = one.moved(0, 4, {0: 8.0, 2: 31.25})
    assert (both.start, both.here) == (9, {0: 8.0, 2: 31.25})
    left = both.moved(2, 0, both.here)
    assert (left.start, left.here) == (9, {0: 8.0, 2: 0.0})
    assert one.moved(0, 4, {0: 8.0}).text != one.moved(1, 4, {0: 8.0}).text  # each knows its own


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(N))


@ranks(2)
def test_what_is_refused(me: RankContext) -> None:
    refused: tuple[tuple[Any, dict[str, Any]], ...] = (
        (data(), {"microbatch": 2}), (data(), {"cost": [1] * N}), (Stream(), {}),
    )  # fmt: skip
    for dataset, more in refused:
        with uneven.Session() as session, pytest.raises(ConfigError, match=r"together=True\) with"):
            session.loader(dataset, X, together=True, **more)
    with uneven.Session(sync="local:every=2") as session:
        model = net().double()
        session.setup(model, sgd(model))
        batch = next(iter(session.loader(data(), X, together=True)))
        with pytest.raises(ConfigError, match="do not meet in each iteration"):
            session.microbatches(batch)
    with uneven.Session() as session:
        model = net().double()
        session.setup(model, sgd(model))
        loader = session.loader(data(), X, together=True)
        with pytest.raises(TrainingError, match="outside of the loop"):
            next(session.microbatches(data()[:4]))
        for batch in loader:
            with pytest.raises(TrainingError, match="no forward pass on the batch"):
                list(session.microbatches(batch))
            with session.loss_mean(1.0):
                model(batch[0])
                with pytest.raises(TrainingError, match=r"inside of session\.loss_mean"):
                    next(session.microbatches(batch))
            break
