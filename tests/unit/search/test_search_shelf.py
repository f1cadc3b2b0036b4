"""Which prepared samples lie where."""

import pytest

from uneven.errors import ConfigError
from uneven.search.pure.sample_cache import SampleCache, slots_for


def test_a_chunk_is_made_once_for_all_who_come() -> None:
    shelf = SampleCache(slots=8, per_pass=4, ahead=1)
    assert shelf.want(1, 0, 3) is None
    assert shelf.want(2, 0, 3) is None
    assert shelf.assign("a") == (0, 0)
    assert shelf.assign("b") == (1, 1)  # ahead of them
    assert shelf.assign("c") is None
    assert shelf.made("a") == {1: 0, 2: 0}
    assert shelf.want(3, 0, 3) == 0
    with pytest.raises(ConfigError, match="still making chunk 1"):
        shelf.assign("b")


def test_nothing_is_made_ahead_of_the_end_of_an_epoch() -> None:
    shelf = SampleCache(slots=8, per_pass=4, ahead=3)
    shelf.want(1, 3, 3)
    assert shelf.assign("a") == (3, 0)
    assert shelf.assign("b") is None


def test_the_highest_epoch_goes_first_and_never_what_somebody_reads() -> None:
    shelf = SampleCache(slots=3, per_pass=2, ahead=0)
    for trial, chunk in ((1, 0), (2, 2), (3, 4)):
        shelf.want(trial, chunk, chunk)
        assert shelf.assign("a") is not None
        shelf.made("a")
    shelf.want(4, 1, 1)
    assert shelf.assign("a") is None  # all three are being read
    shelf.leave(1)
    shelf.leave(3)
    assert shelf.assign("a") == (1, 2)  # where chunk 4 lay, of epoch 2
    shelf.made("a")
    assert sorted(shelf.ready) == [0, 1, 2]


def test_what_a_lost_maker_was_making_is_made_by_another() -> None:
    shelf = SampleCache(slots=2, per_pass=2, ahead=0)
    shelf.want(1, 0, 1)
    shelf.assign("a")
    assert shelf.lost("a") == 0
    assert shelf.lost("b") is None
    assert shelf.assign("b") in ((0, 0), (0, 1))
    assert shelf.made("b") in ({1: 0}, {1: 1})


def test_room_short_enough_takes_what_was_made_ahead_for_others() -> None:
    shelf = SampleCache(slots=2, per_pass=4, ahead=1)
    shelf.want(1, 0, 3)
    for maker in "ab":
        shelf.assign(maker)
        shelf.made(maker)
    shelf.want(2, 3, 3)
    assert shelf.assign("a") == (3, 1)


def test_chunks_made_ahead_do_not_evict_each_other() -> None:
    shelf = SampleCache(slots=6, per_pass=79)
    for reader in range(4):
        shelf.want(reader, 20 * reader, 78)
    made = []
    while len(made) < 10 and (found := shelf.assign("m")) is not None:
        made.append(found[0])
        shelf.made("m")
    assert made == [0, 20, 40, 60, 1, 21]


def test_the_size_of_the_shelf() -> None:
    assert slots_for(1e6, 1000, per_pass=10, readers=2, ahead=2, passes=3) == 30
    assert slots_for(20_000, 1000, per_pass=10, readers=2, ahead=2, passes=3) == 20
    with pytest.raises(ConfigError, match="data_bytes=3000 or more"):
        slots_for(2000, 1000, per_pass=10, readers=2, ahead=2, passes=1)
    with pytest.raises(ConfigError, match="0 slots"):
        SampleCache(slots=0, per_pass=1)
