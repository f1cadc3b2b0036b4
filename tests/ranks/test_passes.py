"""Several passes over one batch: the weights of one process, whoever needs how many."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from session_parts import N, X, assert_same, net, sgd, tensors
from torch import nn
from torch.utils.data import TensorDataset

import uneven
from uneven.errors import ConfigError, DataError, TrainingError
from uneven.journal import read
from uneven.policy.core.records import StepRecord
from uneven.testing.ranks import RankContext, ranks

IGNORED = -100


def data() -> tuple[torch.Tensor, torch.Tensor]:
    x, y = tensors(torch.float64)
    return x, torch.where(torch.arange(N) % 3 == 0, IGNORED, y)


def one_process() -> nn.Module:
    model = net().double()
    optimizer = sgd(model)
    for _ in range(2):
        for x, y in zip(*(one.split(X) for one in data()), strict=True):
            F.cross_entropy(model(x), y, ignore_index=IGNORED).backward()
            optimizer.step()
            optimizer.zero_grad()
    return model


def by_samples(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.mse_loss(model(x), F.one_hot(y.clamp(min=0), 3).double())


def train(session: uneven.Session, tokens: bool, microbatch: int | None = 3) -> nn.Module:
    model = net().double()
    optimizer = sgd(model)
    session.setup(model, optimizer)
    loader = session.loader(TensorDataset(*data()), X, shuffle=False, microbatch=microbatch)
    for _ in range(2):
        for batch in loader:
            if tokens:
                count = (batch[1] != IGNORED).sum()
                with session.loss_mean(count):
                    for x, y in session.microbatches(batch):
                        total = F.cross_entropy(model(x), y, ignore_index=IGNORED, reduction="sum")
                        (total / count.clamp(min=1)).backward()
            else:
                for x, y in session.microbatches(batch):
                    by_samples(model, x, y).backward()
            optimizer.step()
            optimizer.zero_grad()
    return model


@pytest.mark.parametrize("tokens", [False, True])
@ranks(3)
def test_unequally_many_passes(me: RankContext, tmp_path: str, tokens: bool) -> None:
    """Shares of 6, 2 and 10 of 18 parts: two, one and three passes of at most three samples."""
    session = uneven.Session(balance="static:shares=6/2/10", run_dir=tmp_path)
    model = train(session, tokens)
    session.close()
    alone = one_process() if tokens else by_one_process()
    assert_same(model, alone, 1e-12)
    steps = [one for one in read(Path(tmp_path)).ranks[me.rank] if isinstance(one, StepRecord)]
    assert [one.passes for one in steps] == [max(1, -(-one.batch // 3)) for one in steps]
    assert max(one.passes for one in steps) == (2, 1, 3)[me.rank]


def by_one_process() -> nn.Module:
    model = net().double()
    optimizer = sgd(model)
    for _ in range(2):
        for x, y in zip(*(one.split(X) for one in data()), strict=True):
            by_samples(model, x, y).backward()
            optimizer.step()
            optimizer.zero_grad()
    return model


@pytest.mark.parametrize("tokens", [False, True])
@ranks(1)
def test_alone(me: RankContext, tokens: bool) -> None:
    with uneven.Session() as session:
        assert_same(train(session, tokens), one_process() if tokens else by_one_process(), 1e-12)


@ranks(2)
def test_where_parameters_are_averaged(me: RankContext) -> None:
    """Nothing weighs gradients there; passes or none, the replicas go the same way."""
    found = []
    for microbatch in (2, None):
        with uneven.Session(sync="local:every=2", balance="even") as session:
            found.append(train(session, False, microbatch))
    assert_same(*found, 1e-12)


class Wrapping(nn.Module):
    """Returns its output inside of something else."""

    def __init__(self, wrap: Any) -> None:
        super().__init__()
        self.net, self.wrap = net().double(), wrap

    def forward(self, x: torch.Tensor) -> Any:
        return self.wrap(self.net(x))


@dataclass
class Output:
    logits: torch.Tensor


@ranks(1)
def test_an_output_whose_gradient_cannot_be_weighted_is_refused(me: RankContext) -> None:
    for wrap in (Output, lambda y: SimpleNamespace(logits=y), lambda y: (y, Output(y))):
        model = Wrapping(wrap)
        with uneven.Session() as session:
            session.setup(model, sgd(model))
            batch = next(iter(session.loader(TensorDataset(*data()), X, microbatch=3)))
            pieces = session.microbatches(batch)
            x, _ = next(iter(pieces))
            with pytest.raises(TrainingError, match=r"session\.microbatches: .* return tensors"):
                model(x)


class Filling(nn.Module):
    """Holds six samples, and says so as a device does."""

    def __init__(self) -> None:
        super().__init__()
        self.net = net().double()

    def forward(self, x: torch.Tensor) -> Any:
        if len(x) > 6:
            raise torch.OutOfMemoryError(f"{len(x)} samples")
        return self.net(x)


@ranks(2)
def test_auto_is_what_the_profile_measures(me: RankContext) -> None:
    model = Filling()
    optimizer = sgd(model)
    with uneven.Session(balance="static:shares=1/1") as session:
        session.setup(model, optimizer)
        loader = session.loader(TensorDataset(*data()), 40, shuffle=False, microbatch="auto")
        with pytest.raises(ConfigError, match=r"call session.profile\(step\) before"):
            session.microbatches([torch.zeros(2)])
        session.profile(lambda batch: by_samples(model, *batch).backward(), within_s=2.0)
        for batch in loader:
            sizes = [
                len(x) for x, _ in session.microbatches(batch) if by_samples(model, x, batch[1][: len(x)]) is not None
            ]
            assert len(batch[0]) > 6
            assert max(sizes) <= 6
            break


@ranks(2)
def test_what_is_refused(me: RankContext) -> None:
    for wrong in (0, "some", 2.5):
        with uneven.Session() as session, pytest.raises(ConfigError, match="give the samples of one pass"):
            session.loader(TensorDataset(*data()), X, microbatch=wrong)  # type: ignore[arg-type]
    with uneven.Session() as session:
        with pytest.raises(ConfigError, match=r"comes after session.setup"):
            session.microbatches([torch.zeros(2)])
        model = net().double()
        session.setup(model, sgd(model))
        loader = session.loader(TensorDataset(*data()), X, microbatch=2)
        with pytest.raises(DataError, match="a batch with a tensor"):
            next(iter(session.microbatches({"text": "none"})))
        batch = next(iter(loader))
        pieces = iter(session.microbatches(batch))
        next(pieces)
        with pytest.raises(TrainingError, match=r"inside of session.microbatches"), session.loss_mean(1.0):
            pass
        pieces.close()  # type: ignore[attr-defined] # a generator has it


def test_a_batch_of_any_shape_is_cut() -> None:
    from uneven.run.loops.passes import _rows, cut

    batch = {"x": torch.arange(8).view(4, 2), "of all": torch.arange(3), "names": ["a", "b", "c", "d"], "scale": 2.0}
    assert _rows(batch) == 4
    found = cut(batch, 4, 1, 3)
    assert found["x"].tolist() == [[2, 3], [4, 5]]
    assert (found["of all"].tolist(), found["names"], found["scale"]) == ([0, 1, 2], ["b", "c"], 2.0)
    assert [one.tolist() for one in cut((torch.arange(4), torch.arange(4)), 4, 0, 1)] == [[0], [0]]
    graphs = [SimpleNamespace(x=torch.zeros(3)) for _ in range(4)]
    assert cut([torch.zeros(4, 0), graphs], 4, 1, 3)[1] == graphs[1:3], "a list of samples"
    assert _rows([torch.zeros(4, 0), torch.zeros(2)]) == 4
    with pytest.raises(DataError, match="of a SimpleNamespace: give a batch with a tensor"):  # which could not be cut
        _rows(graphs[0])
