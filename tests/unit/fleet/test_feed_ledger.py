"""The book of the ring: whatever readers and makers do, nothing is overwritten early, lost, or made twice."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from uneven.errors import ConfigError
from uneven.fleet.pure.ledger import Ledger

READERS, MAKERS = ("a", "b", "c"), ("m", "n")


def test_the_slowest_reader_bounds_how_far_the_fastest_leads() -> None:
    book = Ledger(slots=2, end=10)
    book.join("fast")
    book.join("slow")
    book.raise_floor(10)
    for expected in (0, 1):
        assert book.assign("m") == expected
        book.made("m")
    book.read("fast", 2)
    assert book.assign("m") is None
    assert (book.full, book.holding(), book.fill) == (True, ("slow",), 1.0)
    book.read("slow", 1)
    assert book.assign("m") == 2
    book.leave("slow")
    book.leave("slow")
    assert (book.made("m"), book.assign("m"), book.assign("n")) == (2, 3, None)


def test_what_a_dead_maker_had_begun_is_made_first() -> None:
    book = Ledger(slots=4, end=4)
    book.join("a")
    assert (book.assign("m"), book.assign("n")) == (0, 1)
    book.made("n")
    assert (book.ready, book.lost("m"), book.lost("m")) == (0, 0, None)
    assert book.assign("n") == 0
    book.made("n")
    assert book.ready == 2


def test_newcomers_begin_at_the_floor_and_find_everything_from_there_on() -> None:
    book = Ledger(slots=8, end=8)
    book.join("a")
    for _ in range(6):
        book.assign("m")
        book.made("m")
    book.raise_floor(4)
    book.read("a", 6)
    assert (book.tail, book.assign("m")) == (4, 6)  # four and five are kept
    assert book.join("late") == 4
    book.leave("a")
    assert book.tail == 4


def test_what_nobody_will_read_is_not_made() -> None:
    book = Ledger(slots=4, end=8)
    book.join("a")
    assert (book.assign("m"), book.assign("n")) == (0, 1)
    book.lost("n")
    book.leave("a")
    book.raise_floor(6)
    assert (book.tail, book.ready, book.next, book.assign("n")) == (0, 6, 6, None)  # somebody still writes there
    book.made("m")
    assert (book.tail, book.assign("m"), book.ready) == (6, 6, 6)


def test_contradictions_are_refused() -> None:
    with pytest.raises(ConfigError, match="0 slots"):
        Ledger(slots=0)
    book = Ledger(slots=2, end=2)
    book.join("a")
    with pytest.raises(ConfigError, match="reads this ring already"):
        book.join("a")
    with pytest.raises(ConfigError, match="0 are ready"):
        book.read("a", 1)
    book.assign("m")
    with pytest.raises(ConfigError, match="still making chunk 0"):
        book.assign("m")
    book.raise_floor(1)
    with pytest.raises(ConfigError, match="cannot go back"):
        book.raise_floor(0)


ACTIONS = st.lists(
    st.tuples(st.sampled_from(("join", "leave", "read", "assign", "made", "lost", "floor")), st.integers(0, 5)),
    max_size=120,
)


@settings(max_examples=80)
@given(slots=st.integers(1, 5), actions=ACTIONS)
def test_nothing_is_overwritten_before_all_have_read_it(slots: int, actions: list[tuple[str, int]]) -> None:
    book, ring, making = Ledger(slots=slots, end=30), {}, {}
    for action, number in actions:
        reader, maker = READERS[number % 3], MAKERS[number % 2]
        if action == "join" and reader not in book.readers:
            book.join(reader)
        elif action == "leave":
            book.leave(reader)
        elif action == "read" and reader in book.readers and book.readers[reader] < book.ready:
            at = book.readers[reader]
            assert ring[at % slots] == at, "it reads another chunk than it thinks"
            book.read(reader, at + 1)
        elif action == "assign" and maker not in making:
            chunk = book.assign(maker)
            if chunk is not None:
                over = ring.get(chunk % slots, -1)
                assert over == chunk or all(at > over for at in book.readers.values()), "overwritten too early"
                assert chunk not in making.values(), "made twice at once"
                making[maker] = chunk
                ring[chunk % slots] = chunk
        elif action == "made" and maker in making:
            assert ring[making[maker] % slots] == making[maker], "two have written into one slot"
            assert book.made(maker) == making.pop(maker)
        elif action == "lost":
            assert book.lost(maker) == making.pop(maker, None)
        elif action == "floor" and all(at >= book.floor for at in book.readers.values()):
            book.raise_floor(book.floor + number % 2)
        if book.readers:
            reached = [min(at, book.ready) for at in book.readers.values()]
            assert max(reached) - min(reached) <= slots, "the skew is not bounded"
        assert book.tail <= book.ready <= max(book.next, book.floor)
        assert 0.0 <= book.fill <= 1.0


@settings(max_examples=30)
@given(slots=st.integers(1, 5), turns=st.lists(st.integers(0, 4), max_size=200))
def test_everybody_reads_everything_once_whoever_leaves(slots: int, turns: list[int]) -> None:
    total = 20
    book, got = Ledger(slots=slots, end=total), {name: [] for name in READERS}
    for name in READERS:
        book.join(name)
    book.raise_floor(total)
    making: set[str] = set()
    for turn in [*turns, *([0, 1, 2, 3, 4] * 60)]:  # whatever the beginning, all get their turns in the end
        if turn < 3:
            name = READERS[turn]
            if name in book.readers and book.readers[name] < book.ready:
                got[name].append(book.readers[name])
                book.read(name, book.readers[name] + 1)
            if name == "b" and len(got["b"]) == 7:
                book.leave("b")
        else:
            maker = MAKERS[turn - 3]
            if maker in making:
                book.made(maker)
                making.remove(maker)
            elif book.assign(maker) is not None:
                making.add(maker)
    assert got["a"] == got["c"] == list(range(total))
    assert got["b"] == list(range(7))


def test_what_was_made_and_lost_is_made_again_and_nobody_goes_back() -> None:
    book = Ledger(slots=3, end=9)
    book.join("reader")
    for chunk in range(3):
        assert book.assign("a") == chunk
        book.made("a")
    book.again(1)
    book.again(1)  # two readers miss it
    book.again(7)  # it has never been there
    assert (book.missing(0), book.missing(1), book.missing(7), book.ready) == (False, True, False, 3)
    assert book.assign("a") == 1
    book.again(1)
    assert book.assign("b") is None
    assert book.lost("a") == 1  # who made it again dies over it
    assert book.assign("b") == 1
    assert book.made("b") == 1
    assert (book.missing(1), book.ready) == (False, 3)
    book.again(2)
    book.read("reader", 3)  # it had it all the same
    book.raise_floor(3)
    assert not book.missing(2)
    assert book.assign("a") == 3
