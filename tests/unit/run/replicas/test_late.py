"""What an exchange comes to that enters the replica some steps later."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor

from uneven.errors import CheckpointError, ConfigError, PeerError
from uneven.policy.core.actions import BlockMomentum, Exchange, Moment, Payload
from uneven.policy.core.plain import Misfit
from uneven.run.replicas.peers.delayed import CHANGE, DUE, DelayedOutcomes, LatePiece, split
from uneven.run.replicas.peers.replica import ExchangeResult, Replica

ONE = Exchange(
    payload=Payload.PARAMETERS, members=(0, 1), merge=BlockMomentum(0.5), moment=Moment.STEP, piece=(0, 1), delay=2
)


def begun() -> tuple[Replica, DelayedOutcomes]:
    model = torch.nn.Linear(2, 1, bias=False).double()
    torch.nn.init.zeros_(model.weight)
    replica = Replica(model)
    replica.expect([BlockMomentum(0.5)], centre=True, cuts=[1])
    replica.begin()
    replica.flat.write(torch.tensor([1.0, 3.0], dtype=torch.float64))
    return replica, DelayedOutcomes(replica)


def with_one_that_stayed(vector: Tensor) -> int:
    """The other one has taken as many samples and moved nothing."""
    vector[-2] *= 2
    return 16


def test_it_enters_when_it_is_due_with_what_was_learnt_meanwhile() -> None:
    replica, late = begun()
    landed: list[tuple[ExchangeResult, float]] = []
    go = threading.Event()

    def total(vector: Tensor) -> int:
        go.wait()
        return with_one_that_stayed(vector)

    assert not late.due(9)
    late.begin(LatePiece(replica, ONE, 4, total, lambda met, took_s: landed.append((met, took_s))), 5)
    replica.flat.add(torch.tensor([10.0, 10.0], dtype=torch.float64), 1.0)  # under way, so nobody waits
    assert [late.due(clock) for clock in (3, 4, 5)] == [False, False, True]
    go.set()
    vectors, numbers = late.state(shown=False)
    assert replica.centre.tolist() == [0.5, 1.5], "the mean movement of the two, merged already"
    assert replica.flat.read().tolist() == [11.0, 13.0], "and not entered yet"
    assert vectors[CHANGE].tolist() == [-0.5, -1.5]
    assert numbers[DUE] == 5.0
    assert late.state(shown=True)[1][DUE] == 0.0
    late.enter()
    assert replica.flat.read().tolist() == [10.5, 11.5]
    assert [one[0].sent_bytes for one in landed] == [16]
    assert not late.due(9)


def test_what_is_saved_enters_after_it_was_loaded() -> None:
    replica, late = begun()
    late.begin(LatePiece(replica, ONE, 4, with_one_that_stayed, lambda met, took_s: None), 5)
    vectors, numbers = late.state(shown=False)
    own, others, more = split({**vectors, "copy": torch.zeros(2)}, {**numbers, "samples": 1.0})
    assert (set(others), set(more)) == ({"copy"}, {"samples"})
    _, other = begun()
    other.check(own)
    other.load(own)
    assert (other.due(4), other.due(5)) == (False, True)
    other.load({})
    assert not other.due(5)
    with pytest.raises(Misfit):
        other.check({CHANGE: own[CHANGE]})
    with pytest.raises(CheckpointError, match="has 3 numbers, this model 2"):
        other.check({**own, CHANGE: torch.zeros(3)})


def test_an_exchange_that_fails_is_told_where_it_is_waited_for() -> None:
    replica, late = begun()

    def total(vector: Tensor) -> int:
        raise PeerError("rank 1 is gone")

    late.begin(LatePiece(replica, ONE, 4, total, lambda met, took_s: None), 5)
    with pytest.raises(PeerError, match="rank 1 is gone"):
        late.enter()


@pytest.mark.parametrize("more", [{"piece": None}, {"moment": Moment.BACKGROUND}, {"delay": -1}])
def test_only_pieces_and_picked_entries_among_the_workers_have_a_delay(more: dict[str, object]) -> None:
    how: dict[str, object] = {"merge": BlockMomentum(0.5), "moment": Moment.STEP, "piece": (0, 1), "delay": 2, **more}
    with pytest.raises(ConfigError, match=r"a delay of -?\d of parameters"):
        Exchange(payload=Payload.PARAMETERS, members=(0, 1), **how)  # type: ignore[arg-type]


def test_one_that_would_begin_before_the_outcome_before_is_in_the_next_step_is_refused() -> None:
    replica, late = begun()
    late.check_free(ONE, 3)
    late.begin(LatePiece(replica, ONE, 4, with_one_that_stayed, lambda met, took_s: None), 5)
    told = "delay of 2 steps begins before the outcome of the one before has entered"
    with pytest.raises(ConfigError, match=told):
        late.check_free(ONE, 4)
    late.arrive()
    with pytest.raises(ConfigError, match=told):
        late.check_free(ONE, 4)
    late.enter()
    with pytest.raises(ConfigError, match=told):
        late.check_free(ONE, 5)
    late.check_free(ONE, 6)
