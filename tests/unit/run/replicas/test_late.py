"""What an exchange comes to that enters the replica some steps later."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from uneven.errors import CheckpointError, ConfigError
from uneven.policy.core.actions import BlockMomentum, Exchange, Moment, Payload
from uneven.policy.core.plain import Misfit
from uneven.run.replicas.replica import CHANGE, DUE, Replica

ONE = Exchange(
    payload=Payload.PARAMETERS, members=(0, 1), merge=BlockMomentum(0.5), moment=Moment.STEP, piece=(0, 1), delay=2
)


def begun() -> Replica:
    model = torch.nn.Linear(2, 1, bias=False).double()
    torch.nn.init.zeros_(model.weight)
    replica = Replica(model)
    replica.expect([BlockMomentum(0.5)], centre=True, cuts=[1], delays=True)
    replica.begin()
    replica.flat.write(torch.tensor([1.0, 3.0], dtype=torch.float64))
    return replica


def with_one_that_stayed(replica: Replica, due: int, between: Callable[[], object] | None = None) -> None:
    """Meet another one, which has taken as many samples and moved nothing."""
    given = replica.give(ONE, 4)
    replica.due = due
    replica.flat.add(torch.tensor([10.0, 10.0], dtype=torch.float64), 1.0)  # under way, so nobody waits
    if between is not None:
        between()
    given.vector[-2] *= 2
    met = replica.combine(ONE, given, 16)
    replica.land(ONE, given, met)
    assert met.sent_bytes == 16


def test_it_enters_when_it_is_due_with_what_was_learnt_meanwhile() -> None:
    replica = begun()
    with_one_that_stayed(replica, 5)
    vectors, numbers = replica.state_dict()
    assert replica.centre.tolist() == [0.5, 1.5], "the mean movement of the two, merged already"
    assert replica.flat.read().tolist() == [11.0, 13.0], "and not entered yet"
    assert vectors[CHANGE].tolist() == [-0.5, -1.5]
    assert numbers[DUE] == 5.0
    assert replica.state_dict(shown=True)[1][DUE] == 0.0
    replica.enter()
    assert replica.flat.read().tolist() == [10.5, 11.5]
    assert replica.due is None
    replica.enter()
    assert replica.flat.read().tolist() == [10.5, 11.5], "once"


def test_other_exchanges_while_it_is_under_way_use_other_memory() -> None:
    replica = begun()
    at_once = replace(ONE, delay=0, members=(0,))
    with_one_that_stayed(replica, 5, lambda: replica.meet(at_once, 1, lambda vector, exchange: 0))
    change = replica.state_dict()[0][CHANGE]
    before = replica.flat.read()
    assert replica.centre.tolist() == (torch.tensor([1.0, 3.0], dtype=torch.float64) + change).tolist(), "m − s"
    replica.meet(at_once, 1, lambda vector, exchange: 0)
    replica.enter()
    assert not torch.equal(before, replica.flat.read())
    assert torch.equal(replica.state_dict()[0][CHANGE], torch.zeros(2, dtype=torch.float64))


def test_what_is_saved_enters_after_it_was_loaded() -> None:
    replica = begun()
    with_one_that_stayed(replica, 5)
    vectors, numbers = replica.state_dict()
    other = begun()
    other.check(vectors, numbers)
    other.load_state_dict(vectors, numbers)
    assert other.due == 5
    other.enter()
    assert other.flat.read().tolist() == [0.5, 1.5]
    other.load_state_dict(vectors, numbers)
    other.forget()
    assert other.due is None
    with pytest.raises(Misfit):
        other.check({key: one for key, one in vectors.items() if key != CHANGE}, numbers)
    with pytest.raises(Misfit):
        other.check(vectors, {key: one for key, one in numbers.items() if key != DUE})
    with pytest.raises(
        CheckpointError,
        match=r"the exchange in flight in the checkpoint has 3 numbers \('late-change'\), but this model 2",
    ):
        other.check({**vectors, CHANGE: torch.zeros(3)}, numbers)


def test_what_parameters_alone_come_to_leaves_statistics_as_they_are() -> None:
    replica = Replica(torch.nn.Sequential(torch.nn.Linear(1, 2, bias=False), torch.nn.BatchNorm1d(2, affine=False)))
    before: Tensor = replica.flat.read()
    replica.hold(torch.ones(2))
    replica.enter()
    assert (replica.flat.read() - before).tolist() == [1.0, 1.0, 0.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("more", [{"piece": None}, {"moment": Moment.BACKGROUND}, {"delay": -1}])
def test_only_pieces_and_picked_entries_among_the_workers_have_a_delay(more: dict[str, Any]) -> None:
    how: dict[str, Any] = {"merge": BlockMomentum(0.5), "moment": Moment.STEP, "piece": (0, 1), "delay": 2, **more}
    with pytest.raises(ConfigError, match=r"a delay of -?\d of parameters"):
        Exchange(payload=Payload.PARAMETERS, members=(0, 1), **how)
