"""Gaia's selective barrier: what is announced, what must not be read, and until when."""

from __future__ import annotations

import numpy as np
import pytest

from uneven.errors import PeerError
from uneven.policy.select import Backlog, Barrier, Picked, pack_places, unpack_places

SIZE = 200_000


def places(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int64)


def test_places_are_announced_where_more_is_under_way_than_may_be() -> None:
    line = Backlog(100)
    assert [line.leaves(60), line.leaves(40), line.leaves(1)] == [(1, False), (2, False), (3, True)]
    line.taken(1)
    assert line.under_way_bytes == 41
    assert line.leaves(59) == (4, False)
    line.taken(4)
    assert line.under_way_bytes == 0


def test_what_is_announced_is_not_read_and_other_reads_go_on() -> None:
    barrier = Barrier()
    barrier.announced(1, 3, places(4, 9))
    assert barrier.due(places(9, 20)) == {1: 3}
    assert barrier.due(places(5, 20)) == {}
    assert barrier.due() == {1: 3}, "a step reads all"
    barrier.taken(1, 2)
    assert barrier.due(places(4)) == {1: 3}, "what it has sent before does not lift it"
    barrier.taken(1, 3)
    assert barrier.due() == {}


def test_what_two_have_announced_waits_for_both() -> None:
    barrier = Barrier()
    barrier.announced(1, 5, places(7))
    barrier.announced(2, 8, places(7, 8))
    barrier.announced(2, 9, places(1))
    barrier.taken(2, 8)
    assert barrier.due(places(7)) == {1: 5}
    assert barrier.due() == {1: 5, 2: 9}


def test_who_says_it_late_or_says_nothing_bars_nothing() -> None:
    barrier = Barrier()
    barrier.taken(1, 4)
    barrier.announced(1, 4, places(0))  # its entries came on the other way, and sooner
    barrier.announced(1, 5, places())
    assert barrier.due() == {}
    barrier.announced(1, 6, None)
    assert (barrier.due(places(3)), barrier.due(places())) == ({1: 6}, {})


@pytest.mark.parametrize("step", [1, 2, 31, 70_000])
def test_places_alone_come_as_they_were(step: int) -> None:
    own = np.arange(0, SIZE, step)
    found = unpack_places(pack_places(Picked(SIZE, own, own.astype(np.float32))), SIZE)
    assert found is not None
    assert np.array_equal(found, own)
    assert unpack_places(pack_places(Picked(SIZE, None, np.zeros(SIZE))), SIZE) is None


def test_damaged_places_are_refused() -> None:
    message = pack_places(Picked(SIZE, places(3, 4), np.zeros(2)))
    for wrong in (message[:5], message + b"\0", message[:-1], b"\5" + message[1:], b"\7" + message[1:]):
        with pytest.raises(PeerError, match="cannot be read"):
            unpack_places(wrong, SIZE)
    with pytest.raises(PeerError, match="ascend"):
        unpack_places(message, 3)
