"""FlexRR's rules, message by message and in virtual time."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from uneven.errors import ConfigError, TrainingError
from uneven_bench.peers.flexrr.messages import (
    Compute,
    Drop,
    FlexRRKind,
    FlexRRMessage,
    Keep,
    Rules,
    Send,
    Through,
    pieces,
)
from uneven_bench.peers.flexrr.rule import FlexRR
from uneven_bench.peers.flexrr.virtual_time import play


def message(kind: FlexRRKind, number: int = 0, first: int = 0, count: int = 0) -> FlexRRMessage:
    return FlexRRMessage(kind, 0, number, first, count)


READY = message(FlexRRKind.PROGRESS, 0, 39, 40)


def test_who_is_far_behind_offers_a_small_share_from_the_end() -> None:
    slow = FlexRR(0, 2, 40)
    assert slow.begin() == [Compute(0, 0)]
    assert slow.heard(1, READY) == [Send(1, message(FlexRRKind.OFFER, 1, 39, 1))]  # 2.5 % of 40
    assert slow.heard(1, message(FlexRRKind.START, 1)) == [Send(1, message(FlexRRKind.OFFER, 2, 37, 2))]  # then 5 %
    assert slow.computed() == [Compute(0, 1)]


def test_who_is_not_far_behind_offers_nothing() -> None:
    for done, offers in ((31, 1), (32, 0), (36, 0)):
        worker = FlexRR(0, 2, 40)
        worker.begin()
        for _ in range(done):
            worker.computed()
        assert len(worker.heard(1, message(FlexRRKind.PROGRESS, 0, 40, 40))) == offers


def test_who_is_nearly_through_says_so_then_finishes_and_helps() -> None:
    fast = FlexRR(1, 2, 2)
    assert fast.begin() == [Compute(1, 0)]
    assert fast.computed() == [Compute(1, 1), Send(0, message(FlexRRKind.PROGRESS, 0, 1, 2))]
    assert fast.heard(0, message(FlexRRKind.OFFER, 1, 8, 2)) == []  # not before its own are done
    assert fast.computed() == [
        Send(0, message(FlexRRKind.FINISHED)), Send(0, message(FlexRRKind.START, 1)), Compute(0, 8, 1),
    ]  # fmt: skip
    assert fast.computed() == [Compute(0, 9, 1)]
    assert fast.heard(0, message(FlexRRKind.OFFER, 2, 6, 2)) == [Keep(0, 1)], "who offers more has heard of the start"
    assert fast.computed() == [Send(0, message(FlexRRKind.START, 2)), Compute(0, 6, 2)]
    fast.computed()
    assert fast.computed() == []
    assert fast.heard(0, message(FlexRRKind.FINISHED)) == [Keep(0, 2), Through()]


def test_who_reaches_an_offered_share_first_cancels_it() -> None:
    slow = FlexRR(0, 2, 2, rules=Rules(early=0))
    slow.begin()
    assert slow.heard(1, message(FlexRRKind.PROGRESS, 0, 2, 2)) == [Send(1, message(FlexRRKind.OFFER, 1, 1, 1))]
    assert slow.computed() == [Send(1, message(FlexRRKind.CANCEL, 1)), Compute(0, 1)]
    assert slow.heard(1, message(FlexRRKind.START, 1)) == [], "too late: its owner is at it"
    assert slow.computed() == [Send(1, message(FlexRRKind.FINISHED))]


def test_what_was_given_away_is_not_done_again() -> None:
    slow = FlexRR(0, 2, 3)
    slow.begin()
    slow.heard(1, message(FlexRRKind.PROGRESS, 0, 2, 3))
    slow.heard(1, message(FlexRRKind.START, 1))
    assert Send(1, message(FlexRRKind.CANCEL, 2)) in slow.computed(), "the second offer is reached, the first is gone"
    assert slow.computed() == [Send(1, message(FlexRRKind.FINISHED))]


@pytest.mark.parametrize("when", ["queued", "computing", "computed"])
def test_help_that_is_cancelled_does_not_count(when: str) -> None:
    fast = FlexRR(1, 2, 1)
    fast.begin()
    fast.heard(0, message(FlexRRKind.OFFER, 1, 8, 1))
    cancel = message(FlexRRKind.CANCEL, 1)
    if when == "queued":
        assert fast.heard(0, cancel) == []
        assert fast.computed() == [Send(0, message(FlexRRKind.FINISHED))]
        return
    assert fast.computed()[-1] == Compute(0, 8, 1)
    if when == "computing":
        assert fast.heard(0, cancel) == []
        assert fast.computed() == [Drop(0, 1)]
    else:
        assert fast.computed() == []
        assert fast.heard(0, cancel) == [Drop(0, 1)]
    assert fast.heard(0, message(FlexRRKind.FINISHED)) == [Through()]


def test_old_messages_are_passed_over_and_future_ones_refused() -> None:
    worker = FlexRR(0, 2, 4, iteration=3)
    worker.begin()
    assert worker.heard(1, FlexRRMessage(FlexRRKind.START, 2, 1)) == []
    with pytest.raises(TrainingError, match="iteration 3 and rank 1 in 4"):
        worker.heard(1, FlexRRMessage(FlexRRKind.PROGRESS, 4, 0, 1, 2))


def test_computed_without_anything_to_compute_is_a_fault() -> None:
    worker = FlexRR(0, 1, 1)
    worker.begin()
    assert worker.computed() == [Through()]
    with pytest.raises(TrainingError, match="not asked"):
        worker.computed()


def test_messages_travel_as_five_numbers() -> None:
    one = FlexRRMessage(FlexRRKind.OFFER, 7, 3, 12, 2)
    assert FlexRRMessage.of(one.numbers()) == one


def test_a_share_is_cut_into_micro_batches() -> None:
    assert pieces(10, 4) == (4, 4, 2)
    assert pieces(0, 4) == ()
    with pytest.raises(ConfigError, match="0 samples"):
        pieces(4, 0)


def test_a_straggler_is_helped_until_all_end_together() -> None:
    speeds = (1.0, 1.0, 1.0, 4.0)
    played = play([64] * 4, lambda who, owner, piece: speeds[who], message_s=0.01)
    assert sum(rank != 3 for rank in played.done_by[3]) > 40
    # Alone 256 s; the limit is 64 · 4 / (3 + 1/4) = 78.8 s. Helpers wait for the straggler to look up from its pieces
    # of 4 s, and the last one is its own.
    assert 78.8 < max(played.ends_s) < 78.8 + 3 * 4.0
    assert sum(rank == 3 for rank in played.done_by[3]) == pytest.approx(20, abs=2)


def test_a_worker_that_listens_while_it_computes_is_helped_better() -> None:
    def ends_s(attentive: bool) -> float:
        seconds = (1.0, 1.0, 1.0, 10.0)
        played = play([64] * 4, lambda who, *_: seconds[who], message_s=0.01, attentive=attentive)
        return max(played.ends_s)

    assert 82.6 < ends_s(True) < ends_s(False)


def test_equal_workers_do_not_help_each_other() -> None:
    played = play([20] * 4, lambda who, owner, piece: 1.0, message_s=0.01)
    assert played.done_by == tuple((rank,) * 20 for rank in range(4))
    assert played.dropped == 0
    assert played.ends_s == (20.0,) * 4


def test_messages_that_take_long_help_less() -> None:
    def ends_s(message_s: float) -> float:
        seconds = (1.0, 3.0)
        return max(play([40] * 2, lambda who, *_: seconds[who], message_s=message_s).ends_s)

    assert ends_s(0.0) < ends_s(5.0) < ends_s(30.0) <= ends_s(1000.0) == 120.0


@settings(max_examples=150)
@given(
    counts=st.lists(st.integers(0, 12), min_size=1, max_size=6),
    seed=st.integers(0, 10_000),
    message_s=st.sampled_from([0.0, 0.3, 2.0]),
    early=st.integers(0, 3),
    attentive=st.booleans(),
)
def test_each_piece_counts_exactly_once(
    counts: list[int], seed: int, message_s: float, early: int, attentive: bool
) -> None:
    rng = random.Random(seed)
    slow = [rng.choice((0.2, 1.0, 1.0, 5.0)) for _ in counts]
    rules = Rules(behind=rng.choice((0.0, 0.2)), early=early, more=rng.choice((0.05, 0.4)))
    played = play(
        counts, lambda who, *_: slow[who] * rng.uniform(0.5, 1.5), message_s=message_s, rules=rules
    )  # fmt: skip
    assert [len(row) for row in played.done_by] == counts  # play() itself refuses a piece done twice or never
