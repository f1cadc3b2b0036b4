"""Workers that stream at their own pace from one order: every sample once, also over a checkpoint."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import Any

import pytest
from counters import Counters, loaders
from crew import loader_of
from torch.utils.data import IterableDataset

from uneven.errors import CheckpointError, DataError
from uneven.policy.samples.order import epoch_order
from uneven.policy.samples.paced import intervals, positions_of


def turns(streams: list[Any], random: Random, most: int | None = None) -> list[int]:
    """Whoever's turn it is takes a batch, until all are through or so many have been taken."""
    seen: list[int] = []
    running = list(range(len(streams)))
    while running and (most is None or most > 0):
        who = random.choice(running)
        batch = next(streams[who], None)
        if batch is None:
            running.remove(who)
        else:
            seen += batch[0].tolist()
            most = None if most is None else most - 1
    return seen


@pytest.mark.parametrize("length", [1, 7, 24, 25, 101])
def test_every_sample_comes_once_an_epoch_whoever_asks(length: int) -> None:
    random = Random(length)
    crew = loaders(length, (4, 3, 5), Counters())
    for _ in range(3):
        assert sorted(turns([iter(one) for one in crew], random)) == list(range(length))


def test_the_order_is_that_of_the_epoch() -> None:
    (one, other) = loaders(20, (2, 3), Counters())
    first, second = iter(one), iter(other)
    seen = [next(stream)[0].tolist() for stream in (first, second, first, second)]
    order = epoch_order(length=20, seed=3, epoch=0).tolist()
    assert seen == [order[0:2], order[4:7], order[2:4], order[7:10]], "each has asked for its next one already"


def test_several_batches_are_taken_with_one_question_and_fewer_towards_the_end() -> None:
    counters = Counters()
    crew = loaders(1000, (5, 5), counters)
    assert sorted(turns([iter(one) for one in crew], Random(0))) == list(range(1000))
    asked = [samples // 5 for epoch, samples in counters.asked if epoch == 0]
    assert asked[:3] == [12, 12, 11], "an eighth of an equal part of what is left"
    assert asked[-3:] == [1] * 3
    assert sum(asked) <= 202, "two asked once more, in vain"
    assert len(asked) < 70
    counters = Counters()
    counters.ahead = False
    stream = iter(loaders(1000, (5, 5), counters)[0])
    next(stream)
    counters.counts[0, 0] = 995  # the other one has been much faster meanwhile
    assert sum(len(batch[0]) for batch in stream) == 11 * 5 + 5


def test_who_is_to_have_no_more_uses_what_it_has_taken() -> None:
    shares, counters = [(5, 5)], Counters()
    counters.ahead = False
    (one, _) = loaders(1000, (5, 5), counters)
    assert one.paced is not None
    one.paced._shares_for = lambda iteration: shares[0]
    stream = iter(one)
    next(stream)
    shares[0] = (0, 10)
    assert [len(batch[0]) for batch in stream] == [55]
    assert counters.asked == [(0, 60)]


def test_the_last_samples_are_left_out_or_go_with_the_batch_before() -> None:
    random = Random(0)
    dropping = loaders(25, (3, 3), Counters(), drop_last=True)
    assert len(turns([iter(one) for one in dropping], random)) == 24
    for length in (24, 25, 26, 27, 29):
        crew = loaders(length, (6, 6), Counters(), lower=3)
        streams = [iter(one) for one in crew]
        sizes = [len(batch[0]) for _ in range(3) for stream in streams for batch in [next(stream, None)] if batch]
        assert sum(sizes) == length
        assert min(sizes) >= 3


@pytest.mark.parametrize("cut", [1, 4, 9, 16])
@pytest.mark.parametrize("ahead", [False, True])
def test_what_is_left_comes_once_after_a_resume_with_other_workers(cut: int, ahead: bool) -> None:
    """``ahead``: some hold a batch that was taken and not handed out."""
    random = Random(cut)
    counters = Counters()
    crew = loaders(100, (4, 3), counters)
    streams = [iter(one) for one in crew]
    seen = turns(streams, random, cut)
    for sampler in counters.samplers if ahead else ():
        assert sampler.more()
    states = [one.state_dict() for one in crew]
    assert states[0]["left"] == states[1]["left"]
    for stream in streams:
        stream.close()
    resumed = loaders(100, (2, 2, 5), Counters())
    for one in resumed:
        one.load_state_dict(states[0])
    seen += turns([iter(one) for one in resumed], random)
    assert sorted(seen) == list(range(100))
    again = turns([iter(one) for one in resumed], random)
    assert sorted(again) == list(range(100)), "and the epoch after it is whole"


def test_a_state_from_the_last_batches_leaves_its_epoch_with_nothing() -> None:
    random = Random(1)
    crew = loaders(10, (2, 2), Counters())
    streams = [iter(one) for one in crew]
    assert len(turns(streams, random, 5)) == 10
    state = crew[0].state_dict()
    assert state["left"] == []
    resumed = loaders(10, (2, 2), Counters())
    for one in resumed:
        one.load_state_dict(state)
        assert one.epoch == 0
    assert turns([iter(one) for one in resumed], random) == []
    assert sorted(turns([iter(one) for one in resumed], random)) == list(range(10))


@pytest.mark.parametrize("ahead", [False, True])
def test_a_small_rest_that_went_with_the_batch_before_is_not_left_again(ahead: bool) -> None:
    """``ahead``: that batch is in flight when the state is saved."""
    counters = Counters()
    (one,) = loaders(25, (6,), counters, lower=3)
    stream = iter(one)
    sizes = [len(next(stream)[0]) for _ in range(2 if ahead else 4)]
    if ahead:
        assert counters.samplers[0].more()
    assert sum(sizes) == (12 if ahead else 25)
    state = one.state_dict()
    assert state["left"] == ([[12, 25]] if ahead else [])
    stream.close()
    one.load_state_dict(state)


def test_runs_of_positions_and_damaged_ones() -> None:
    assert intervals([3, 4, 5, 1, 2, 9]) == [(3, 6), (1, 3), (9, 10)]
    assert positions_of([(3, 6), (1, 3), (9, 10)]).tolist() == [3, 4, 5, 1, 2, 9]
    assert positions_of([]).tolist() == []
    (one,) = loaders(10, (4,), Counters())
    state = one.state_dict()
    for left in ([[0, 4], [3, 5]], [[4, 4]], [[0, 11]], [[0, 1, 2]], "all", [[0.5, 2]]):
        with pytest.raises(CheckpointError, match=r"left = .*expected runs of positions up to 10"):
            one.load_state_dict(state | {"left": left})


def test_a_stream_has_no_index_to_take() -> None:
    class Stream(IterableDataset[int]):
        def __iter__(self) -> Any:
            return iter(range(4))

    make = partial(loader_of, batch_size=2, rank=0, workers=1, seed=0, split_for=lambda _: (2,))
    with pytest.raises(DataError, match="a stream has no index by which workers could each take samples"):
        make(dataset=Stream(), counter=Counters())
