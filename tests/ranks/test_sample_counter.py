"""The counter and the barrier in the store, on real processes: what is taken, what all know, and who is missing."""

from __future__ import annotations

import gc
import threading

import pytest
import torch
import torch.distributed as dist
from session_parts import everybodys as all_of
from torch.utils.data import TensorDataset

from uneven.errors import PeerError
from uneven.policy.samples.supply import SamplesWanted
from uneven.run.samples.async_sampling.leased_samples import OwnPace, make_own_pace
from uneven.run.samples.async_sampling.sample_counter import _AskedRun
from uneven.run.samples.loader import BalancedLoader
from uneven.run.samples.opening import Division, LoaderOptions
from uneven.testing.ranks import RankContext, ranks


def loader(me: RankContext, own: OwnPace, length: int) -> BalancedLoader:
    found = BalancedLoader(
        LoaderOptions(dataset=TensorDataset(torch.arange(length)), batch_size=3 * me.size),
        Division(
            rank=me.rank, workers=me.size, seed=0, split_for=lambda iteration: (3,) * me.size, counter=own.counter
        ),
    )
    own.counter.sampler = found.paced
    return found


@pytest.mark.parametrize("ahead", [True, False])
@ranks(3)
def test_what_is_left_is_known_to_all_at_every_meeting(me: RankContext, ahead: bool) -> None:
    own = make_own_pace(me.rank, me.size, 30.0, ahead=ahead)
    batches = loader(me, own, 400)
    seen: list[int] = []
    stream = iter(batches)
    for meeting in range(1, 4):
        for _ in range(me.rank + meeting):
            seen += next(stream)[0].tolist()
        left = met(own, batches)
        assert len(set(left)) == len(left) == 400 - len(all_of(seen))
    own.counter.stop()


def met(own: OwnPace, batches: BalancedLoader) -> list[int]:
    assert own.counter.known(0) is None
    own.barrier.arrive()
    own.barrier.wait()
    assert own.barrier.meet() == []
    state = batches.state_dict()
    dist.barrier()
    own.barrier.leave()
    return [place for first, last in state["left"] for place in range(first, last)]


@ranks(2)
def test_words_of_meetings_that_are_over_are_not_kept_and_not_mistaken(me: RankContext) -> None:
    own = make_own_pace(me.rank, me.size, 0.5, ahead=True)
    batches = loader(me, own, 100)
    next(iter(batches))
    for _ in range(5):
        met(own, batches)
    assert not own.barrier._store.has(f"word/3/{me.rank}")
    assert own.barrier._store.has(f"word/4/{me.rank}")
    dist.barrier()
    if me.rank == 0:
        own.barrier.arrive()
        with pytest.raises(PeerError, match=r"rank 1 did not enter it within 0.5 s: every worker must enter it"):
            own.barrier.wait()
        assert own.barrier.meet() == [1]
    dist.barrier()
    own.counter.stop()


@ranks(2)
def test_who_is_through_with_an_epoch_knows_what_the_other_one_holds_of_it(me: RankContext) -> None:
    own = make_own_pace(me.rank, me.size, 30.0, ahead=True)
    batches = loader(me, own, 100)
    seen: list[int] = []
    for (x,) in batches:
        seen += x.tolist()
        if me.rank == 0 and len(seen) == 9:
            break
        if me.rank == 1 and len(seen) == 3:
            dist.barrier()  # the other one has what it will have
    if me.rank == 0:
        dist.barrier()
    left = met(own, batches)
    assert len(set(left)) == len(left) == 100 - len(all_of(seen))
    assert batches.state_dict()["epoch"] == (0 if me.rank == 0 else 1), "it is itself in the next one"
    own.counter.stop()


@ranks(2)
def test_the_thread_that_asks_ends_with_the_session_or_when_it_is_forgotten(me: RankContext) -> None:
    for stopping in (True, False):
        own = make_own_pace(me.rank, me.size, 30.0, ahead=True)
        assert own.counter.take(0, SamplesWanted(4, 1, 400)).result()[0] % 4 == 0
        (thread,) = [one for one in threading.enumerate() if one.name == "uneven-sample-counter"]
        if stopping:
            own.counter.stop()
            assert own.counter.take(0, SamplesWanted(4, 1, 400)).result(), "asked in place"
        del own
        gc.collect()
        thread.join(10.0)
        assert not thread.is_alive()


def test_an_answer_that_does_not_come_in_time_is_an_error() -> None:
    with pytest.raises(PeerError, match=r"rank 3: the store .* has not answered for 0.01 s: .* hangs"):
        _AskedRun(3, 0.01).result()
