"""Loops that draw their batches themselves: ``session.step`` gives the weights of one process on the union batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from session_parts import X, net, sgd, tensors
from torch import nn

import uneven
from uneven.errors import CheckpointError, ConfigError, TrainingError
from uneven.testing.ranks import RankContext, ranks

STEPS, FIXED = 6, (7, 0, 3)


def started(**settings: Any) -> tuple[uneven.Session, nn.Module, torch.optim.Optimizer]:
    session = uneven.Session(**settings)
    model = net().double()
    session.setup(model, optimizer := sgd(model))
    return session, model, optimizer


def drawn(step: int, size: int = X) -> torch.Tensor:
    """The samples of a whole step, as every worker draws them."""
    return torch.randint(0, 50, (size,), generator=torch.Generator().manual_seed(step))


def learn(model: nn.Module, optimizer: torch.optim.Optimizer, indices: torch.Tensor) -> None:
    x, y = tensors(torch.float64)
    F.cross_entropy(model(x[indices]), y[indices]).backward()
    optimizer.step()
    optimizer.zero_grad()


def alone(steps: int, size: int = X) -> list[torch.Tensor]:
    """The weights that one process comes to."""
    model = net().double()
    optimizer = sgd(model)
    for step in range(steps):
        learn(model, optimizer, drawn(step, size))
    return list(model.parameters())


def same(model: nn.Module, weights: list[torch.Tensor]) -> None:
    for mine, theirs in zip(model.parameters(), weights, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0.0, atol=1e-12)


def places(session: uneven.Session) -> Iterator[tuple[int, slice]]:
    """Steps, with the place of this worker's samples among those of all."""
    for step in range(STEPS):
        with session.step(global_batch_size=X) as n:
            shares = session.shares
            first = sum(shares[: session.rank])
            assert n == shares[session.rank]
            yield step, slice(first, first + n)


@ranks(3)
def test_unequal_parts_of_drawn_batches_are_one_batch(me: RankContext) -> None:
    session, model, optimizer = started(balance="static:shares=6/2/4")
    assert session.local_batch_size(X) == session.local_batch_size(X) == (6, 2, 4)[me.rank]
    for step, place in places(session):
        learn(model, optimizer, drawn(step)[place])
    same(model, alone(STEPS))
    state = session.state_dict()
    assert state["loader"] == '{"drawn": 6}'
    session.close()

    later, *_ = started(balance="static:shares=6/2/4")
    later.load_state_dict(state)
    with later.step(global_batch_size=X):
        assert later.state_dict()["loader"] == '{"drawn": 7}'
    with pytest.raises(ConfigError, match=r"batch_size=24.*the first one had 12"):
        later.local_batch_size(2 * X)
    later.close()


@ranks(3)
def test_workers_with_parts_of_their_own_count_by_their_samples(me: RankContext) -> None:
    session, model, optimizer = started()
    first = sum(FIXED[: me.rank])
    for step in range(STEPS):
        with session.step(samples=FIXED[me.rank]) as n:
            assert n == FIXED[me.rank]
            place = slice(first, first + n) if n else slice(0, 1)  # one that counts nothing takes part all the same
            learn(model, optimizer, drawn(step, sum(FIXED))[place])
    same(model, alone(STEPS, sum(FIXED)))
    wrong = rf"takes 5 samples, but its share of the global batch of 10 is {n}"
    with pytest.raises(TrainingError, match=wrong), session.step(samples=5):
        pass
    session.close()


@ranks(2)
def test_what_cannot_be_is_refused_by_name(me: RankContext) -> None:
    session, *_ = started(sync="asp", balance="even")
    with pytest.raises(ConfigError, match=r"which only session\.loader supports"):
        session.local_batch_size(X)
    session.close()
    session, *_ = started()
    with pytest.raises(ConfigError, match=r"give one of the two"), session.step():
        pass
    loader = session.loader(torch.utils.data.TensorDataset(*tensors()), X)
    with pytest.raises(ConfigError, match=r"leave session\.loader out"):
        session.local_batch_size(X)
    state = session.state_dict()
    loader.close()
    session.close()
    other, *_ = started()
    other.load_state_dict(state)
    with pytest.raises(CheckpointError, match="use a loader"):
        other.local_batch_size(X)
    other.close()


class Breaking(Exception):
    pass


def test_a_step_that_breaks_off_is_over_and_the_next_one_goes_on() -> None:
    session, model, optimizer = started()
    with pytest.raises(Breaking), session.step(global_batch_size=X):
        raise Breaking
    with session.step(global_batch_size=X) as n:
        learn(model, optimizer, drawn(1, n))
    session.close()


class Counting(uneven.Callback):
    """In which steps gradients were ready, and which steps were over."""

    def __init__(self) -> None:
        self.ready: list[int] = []
        self.over: list[int] = []

    def gradients_ready(self, step: uneven.Step, optimizer: torch.optim.Optimizer) -> None:
        self.ready.append(step.iteration)

    def after_step(self, step: uneven.Step) -> None:
        self.over.append(step.iteration)


def test_a_step_without_a_forward_pass_takes_none_of_the_next() -> None:
    part = Counting()
    session, model, optimizer = started(callbacks=[part])
    for step in range(4):
        with session.step(global_batch_size=X) as n:
            if step % 2 == 0:
                continue
            learn(model, optimizer, drawn(step, n))
    assert part.ready == [1, 3]
    assert part.over == [0, 1, 2, 3]
    session.close()


def test_a_step_holds_no_other_one_and_a_closed_session_has_none() -> None:
    part = Counting()
    session, *_ = started(callbacks=[part])
    with session.step(global_batch_size=X):
        with (
            pytest.raises(TrainingError, match="inside of step 0, which has not ended"),
            session.step(global_batch_size=X),
        ):
            pass
        session.close()
    assert part.over == []
    with pytest.raises(ConfigError, match="the session is closed"), session.step(global_batch_size=X):
        pass


@pytest.mark.parametrize("size", [0, -3, True, 12.0, "8"])
def test_what_is_no_number_of_samples_is_refused(size: Any) -> None:
    session, *_ = started()
    with pytest.raises(ConfigError, match="give a number of samples"), session.step(global_batch_size=size):
        pass
    why = "at least one must be above 0" if size == 0 else "give a number of samples"
    with pytest.raises(ConfigError, match=why), session.step(samples=size):
        pass
    session.close()
