"""A second loader whose DistributedSampler gives equal parts: a warning where it trains the model, and only there."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from itertools import cycle, islice
from typing import Any

import torch
import torch.nn.functional as F
from session_parts import X, net, sgd, tensors
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler, StackDataset, TensorDataset

import uneven
from uneven.run.model import pass_tracking
from uneven.testing.ranks import RankContext, ranks

# Not DistributedSampler.__iter__: an earlier test in this process may have left a session to the garbage collector.
PLAIN = pass_tracking._plain_samplers
SHARES = "static:shares=7/5"


class Both(nn.Module):
    """Takes the batches of both loaders at once."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = net()

    def forward(self, x: Tensor, u: Tensor | None = None) -> Tensor:
        found: Tensor = self.inner(x if u is None else torch.cat([x, u]))
        return found


class Script:
    """A session, and a second data set that each rank has an equal part of."""

    def __init__(self, session: uneven.Session, readers: int = 0) -> None:
        self.session = session
        self.model = Both()
        self.optimizer = sgd(self.model)
        session.setup(self.model, self.optimizer)
        self.loader = session.loader(TensorDataset(*tensors()), X)
        self.data: Dataset[Any] = TensorDataset(tensors()[0])
        sampler: Any = DistributedSampler(self.data, session.world_size, session.rank, shuffle=False)
        self.second = DataLoader(self.data, 4, sampler=sampler, num_workers=readers)

    def step(self, *losses: Tensor) -> None:
        torch.stack(losses).sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def supervised(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.model(x), y)

    def some(self) -> Iterator[Tensor]:
        return (u for (u,) in islice(self.second, 2))


def zipped(script: Script) -> None:
    for (x, y), (u,) in zip(script.loader, script.second, strict=False):
        script.step(script.supervised(x, y), script.model(u).square().mean())


def drawn_first(script: Script) -> None:
    """The second one is asked first, and began before the loop."""
    for (u,), (x, y) in zip(cycle(script.second), script.loader, strict=False):
        script.step(script.supervised(x, y), script.model(u).square().mean())


def joined(script: Script) -> None:
    for (x, y), (u,) in zip(script.loader, script.second, strict=False):
        script.step(F.cross_entropy(script.model(torch.cat([x, u]))[: len(x)], y))


def in_one_call(script: Script) -> None:
    for (x, y), (u,) in zip(script.loader, script.second, strict=False):
        script.step(F.cross_entropy(script.model(x, u=u)[: len(x)], y))


def counted(script: Script) -> None:
    """Who says what the mean is over weights it."""
    for (x, y), (u,) in zip(script.loader, script.second, strict=False):
        with script.session.loss_mean(len(x) + len(u)):
            script.step(F.cross_entropy(script.model(torch.cat([x, u]))[: len(x)], y))


def of_another_model(script: Script) -> None:
    teacher = net()
    for (x, y), (u,) in zip(script.loader, script.second, strict=False):
        teacher(u)
        script.step(script.supervised(x.clone(), y))


def evaluated_without_gradients(script: Script) -> None:
    for x, y in script.loader:
        script.step(script.supervised(x, y))
        for u in script.some():
            with torch.no_grad():
                script.model(u)


def evaluated_in_evaluation_mode(script: Script) -> None:
    for x, y in script.loader:
        script.step(script.supervised(x, y))
        script.model.eval()
        for u in script.some():
            script.model(u)
        script.model.train()


def evaluated_by_the_session(script: Script) -> None:
    for x, y in script.loader:
        script.step(script.supervised(x, y))
        with script.session.evaluation_model():
            for u in script.some():
                script.model(u)


def between_epochs(script: Script) -> None:
    for _ in range(2):
        for x, y in script.loader:
            script.step(script.supervised(x, y))
        for u in script.some():
            script.model(u)


def one_replica(script: Script) -> None:
    """Every rank reads all samples."""
    whole: Any = DistributedSampler(script.data, 1, 0)
    for (x, y), (u,) in zip(script.loader, DataLoader(script.data, 4, sampler=whole), strict=False):
        script.step(script.supervised(x, y), script.model(u).square().mean())


WARNED = (zipped, drawn_first, joined, in_one_call)
SILENT = (counted, of_another_model, evaluated_without_gradients, evaluated_in_evaluation_mode,
          evaluated_by_the_session, between_epochs, one_replica)  # fmt: skip


def said_in(loop: Callable[[Script], None], readers: int = 0, balance: str = SHARES) -> list[str]:
    gc.collect()  # an earlier test in this process may have left a session, which watches samplers
    with warnings.catch_warnings(record=True) as said, uneven.Session(balance=balance) as session:
        warnings.simplefilter("always")
        script = Script(session, readers)
        assert (DistributedSampler.__iter__ is PLAIN) == (session.world_size == 1)
        loop(script)
        loop(script)
    assert DistributedSampler.__iter__ is PLAIN, "nothing is left of the look at samplers"
    return [str(one.message) for one in said if "DistributedSampler" in str(one.message)]


@ranks(2, timeout_s=120)
def test_equal_parts_of_a_second_data_set_are_warned_of_once(me: RankContext) -> None:
    for loop in WARNED:
        said = said_in(loop)
        assert len(said) == (me.rank == 0), (loop.__name__, said)
        assert all("torch's StackDataset" in one for one in said)
    assert len(said_in(drawn_first, readers=1)) == (me.rank == 0), "readers take indices ahead"


@ranks(2, timeout_s=120)
def test_samples_that_do_not_train_the_model_are_not(me: RankContext) -> None:
    for loop in SILENT:
        assert said_in(loop) == [], loop.__name__
    assert said_in(zipped, balance="even") == [], "equal shares weight equal parts rightly"


def test_nor_is_a_single_process() -> None:
    with warnings.catch_warnings(record=True) as said, uneven.Session() as session:
        warnings.simplefilter("always")
        zipped(Script(session))
        assert DistributedSampler.__iter__ is PLAIN
    assert [one for one in said if "DistributedSampler" in str(one.message)] == []


@ranks(2)
def test_the_way_out_is_one_process(me: RankContext) -> None:
    """One loader of both data sets, under unequal shares and alone."""

    def trained(session: uneven.Session | None) -> nn.Module:
        model = Both()
        optimizer = sgd(model)
        x, y = tensors()
        data: Any = StackDataset(x, y, x.flip(0))
        if session is not None:
            session.setup(model, optimizer)
        loader = DataLoader(data, X) if session is None else session.loader(data, X, shuffle=False)
        for a, b, u in loader:
            (F.cross_entropy(model(a), b) + model(u).square().mean()).backward()
            optimizer.step()
            optimizer.zero_grad()
        return model

    with uneven.Session(balance=SHARES) as session:
        ours = trained(session)
    for a, b in zip(ours.parameters(), trained(None).parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
