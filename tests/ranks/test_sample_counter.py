"""The counter in the store, on real processes: what is handed out, what all know at a meeting, and who is missing."""

from __future__ import annotations

import gc
import threading

import pytest
import torch
import torch.distributed as dist
from session_parts import everybodys as all_of
from torch.utils.data import TensorDataset

from uneven.data.loader import BalancedLoader
from uneven.errors import PeerError
from uneven.run.parameter_server.handout import StoredHandOut, _Answer
from uneven.testing.ranks import RankContext, ranks


def loader(hand_out: StoredHandOut, length: int) -> BalancedLoader:
    found = BalancedLoader(
        dataset=TensorDataset(torch.arange(length)), batch_size=3 * hand_out.size, rank=hand_out.rank,
        world_size=hand_out.size, seed=0, split_for=lambda iteration: (3,) * hand_out.size, hand_out=hand_out,
    )  # fmt: skip
    hand_out.sampler = found.paced
    return found


@pytest.mark.parametrize("ahead", [True, False])
@ranks(3)
def test_what_is_left_is_known_to_all_at_every_meeting(me: RankContext, ahead: bool) -> None:
    hand_out = StoredHandOut(me.rank, me.size, 30.0, ahead=ahead)
    batches = loader(hand_out, 400)
    seen: list[int] = []
    stream = iter(batches)
    for meeting in range(1, 4):
        for _ in range(me.rank + meeting):
            seen += next(stream)[0].tolist()
        left = met(hand_out, batches, meeting)
        assert len(set(left)) == len(left) == 400 - len(all_of(seen))
    hand_out.stop()


def met(hand_out: StoredHandOut, batches: BalancedLoader, meeting: int) -> list[int]:
    assert hand_out.told(0) is None
    hand_out.come(meeting)
    hand_out.wait_for_words(meeting)
    assert hand_out.meet(meeting) == []
    state = batches.state_dict()
    dist.barrier()
    hand_out.part()
    return [place for first, last in state["left"] for place in range(first, last)]


@ranks(2)
def test_words_of_meetings_that_are_over_are_not_kept_and_not_mistaken(me: RankContext) -> None:
    hand_out = StoredHandOut(me.rank, me.size, 0.5, ahead=True)
    batches = loader(hand_out, 100)
    next(iter(batches))
    for meeting in range(1, 6):
        met(hand_out, batches, meeting)
    assert not hand_out._here([f"word/3/{me.rank}"])
    assert hand_out._here([f"word/4/{me.rank}"])
    dist.barrier()
    if me.rank == 0:
        hand_out.come(6)
        with pytest.raises(PeerError, match=r"rank 1 did not come to it within 0.5 s: every worker has to enter it"):
            hand_out.wait_for_words(6)
        assert hand_out.meet(6) == [1]
    dist.barrier()
    hand_out.stop()


@ranks(2)
def test_who_is_through_with_an_epoch_knows_what_the_other_one_holds_of_it(me: RankContext) -> None:
    hand_out = StoredHandOut(me.rank, me.size, 30.0, ahead=True)
    batches = loader(hand_out, 100)
    seen: list[int] = []
    for (x,) in batches:
        seen += x.tolist()
        if me.rank == 0 and len(seen) == 9:
            break
        if me.rank == 1 and len(seen) == 3:
            dist.barrier()  # the other one has what it will have
    if me.rank == 0:
        dist.barrier()
    left = met(hand_out, batches, 1)
    assert len(set(left)) == len(left) == 100 - len(all_of(seen))
    assert batches.state_dict()["epoch"] == (0 if me.rank == 0 else 1), "it is itself in the next one"
    hand_out.stop()


@ranks(2)
def test_the_thread_that_asks_ends_with_the_session_or_when_it_is_forgotten(me: RankContext) -> None:
    for stopping in (True, False):
        hand_out = StoredHandOut(me.rank, me.size, 30.0, ahead=True)
        assert hand_out.take(0, 4).result() % 4 == 0
        (thread,) = [one for one in threading.enumerate() if one.name == "uneven-hand-out"]
        if stopping:
            hand_out.stop()
            assert hand_out.take(0, 0).result() > 0, "asked in place"
        del hand_out
        gc.collect()
        thread.join(10.0)
        assert not thread.is_alive()


def test_an_answer_that_does_not_come_in_time_is_an_error() -> None:
    with pytest.raises(PeerError, match=r"rank 3: the store .* has not answered for 0.01 s: .* hangs"):
        _Answer(3, 0.01).result()
