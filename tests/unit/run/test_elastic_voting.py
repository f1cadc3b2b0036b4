"""From a store that is gone to the next one: members vote there, and launchers see which one has been chosen."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined] # its stubs say that it is private

from uneven.board import ABANDONED, REIGN, VOTE, WORKERS, Board
from uneven.core.membership import Generation, first_generation, generation_of
from uneven.core.succession import Vote
from uneven.errors import PeerError
from uneven.launch.standby import StandingBy
from uneven.run.elastic import succession
from uneven.run.elastic.succession import Succession
from uneven.stores import reach

OPEN_FILES = Path("/proc/self/fd")

LIMIT = timedelta(seconds=60)


def kept_store() -> TCPStore:
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=LIMIT)


@pytest.fixture
def nobody() -> Iterator[int]:
    """A port at which nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


def member(worker: int, gone: int, row: tuple[str, ...], size: int = 3) -> tuple[Succession, list[Generation]]:
    """One whose store has ended; what it has adopted."""
    way, adopted = Succession(worker, ("127.0.0.1", gone), 0.0, 60.0), []
    mine = replace(first_generation(size), row=row)
    way.vote = lambda: Vote(generation=mine.text(), settled=True, workers=size + 2)
    way.adopt = adopted.append
    way.carried.kept[f"through/{worker}"] = "yes"
    return way, adopted


def test_a_majority_meets_at_the_first_store_that_is_there(nobody: int) -> None:
    kept = kept_store()
    row = (f"127.0.0.1 {nobody}", f"127.0.0.1 {kept.port}", "127.0.0.1 1")
    ways = [member(worker, nobody, row) for worker in (1, 2)]
    threads = [threading.Thread(target=way.after, args=(0, RuntimeError("gone"))) for way, _ in ways]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    for way, adopted in ways:
        assert way.address == f"127.0.0.1:{kept.port}"
        assert [one.reign for one in adopted] == [1]
        assert adopted[0].owed == ((0, 1, 2),)
        assert adopted[0].row == ("127.0.0.1 1",), "what may follow that store"
        board = way.board()
        assert board.row() == ("127.0.0.1 1",), "its launcher need not offer it again"
        assert [board.look(f"through/{one}") for one in range(3)] == [None, "yes", "yes"]
        assert board.count(WORKERS, 1) > 5, "numbers 0 to 4 have been given"
        assert set(board.dead(range(5))) == {3, 4}, "who was no member cannot come"
        assert generation_of(board.look("generation/0/0") or "") == adopted[0]


def test_a_minority_ends_by_name_and_nobody_uses_that_store_any_more(
    nobody: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(succession, "_REACHED_WITHIN_S", 0.3)
    kept = kept_store()
    way, adopted = member(1, nobody, (f"127.0.0.1 {kept.port}",))
    with pytest.raises(PeerError, match=r"worker 1: the store of the run is gone, and no more than half"):
        way.after(0, RuntimeError("gone"))
    assert kept.get(REIGN).decode() == ABANDONED
    assert not adopted
    late, adopted = member(2, nobody, (f"127.0.0.1 {kept.port}",))
    with pytest.raises(PeerError):
        late.after(0, RuntimeError("gone"))
    assert not adopted, "with the vote of 1 it would be a majority"


def test_who_comes_to_know_while_it_votes_that_all_have_entered_its_generation_says_so(nobody: int) -> None:
    """Another thread makes the group of all members meanwhile. Without that, worker 0 would be needed as well."""
    kept = kept_store()
    way, adopted = member(1, nobody, (f"127.0.0.1 {kept.port}",))
    mine = Generation(number=1, members=(1,), came={}, why={}, row=(f"127.0.0.1 {kept.port}",), owed=((0,),))
    way.vote = lambda: Vote(generation=mine.text(), settled=kept.check([f"{VOTE}/1"]), workers=2)
    way.after(0, RuntimeError("gone"))
    assert [one.owed for one in adopted] == [((1,),)]


def test_without_a_row_the_store_is_gone(nobody: int) -> None:
    way, _ = member(1, nobody, ())
    with pytest.raises(RuntimeError, match="gone"):
        way.after(0, RuntimeError("gone"))


def test_a_connection_that_is_lost_is_made_again() -> None:
    kept = kept_store()
    kept.add(WORKERS, 3)
    way, adopted = member(1, kept.port, ("127.0.0.1 1",))
    way.after(0, RuntimeError("connection reset"))
    assert (way.moves, adopted) == (0, [])


@pytest.mark.skipif(not OPEN_FILES.is_dir(), reason="this system does not list open files")
def test_a_connection_that_fails_in_time_costs_one_descriptor() -> None:
    """Others of this process are looked at to find the one whose limit is to be set: files, and pipes, too."""
    kept, (reads, writes) = kept_store(), os.pipe()
    try:
        before = len([*OPEN_FILES.iterdir()])
        stores = [reach("127.0.0.1", kept.port, 60.0, gone_s=10.0) for _ in range(3)]
        there = len([*OPEN_FILES.iterdir()]) - before
    finally:
        os.close(reads)
        os.close(writes)
    assert there == 2 * len(stores), "both ends are here"


class Ended:
    """A store whose launcher has ended."""

    def __getattr__(self, name: str) -> object:
        raise RuntimeError("gone")


def test_a_launcher_sees_that_its_own_store_was_chosen() -> None:
    first = kept_store()
    ways = StandingBy(first, ("127.0.0.1", first.port), {"founders": 1}, "127.0.0.1", 10.0)
    (own,) = Board(first).row()
    ways._store = Ended()  # type: ignore[assignment] # as when its launcher has ended
    assert not ways.look()
    assert ways.seeks
    assert ways._own is not None
    ways._own[0].set(REIGN, ABANDONED)
    assert not ways.look()
    ways._own[0].set(REIGN, "a generation")
    assert ways.look()
    assert (ways.keeps, ways.cut) == (True, None)
    assert ways.address == ("127.0.0.1", int(own.split()[1]))


@pytest.mark.parametrize("closed", [False, True])
def test_a_launcher_follows_to_the_store_of_another_and_keeps_its_own_in_reserve_there(closed: bool) -> None:
    """The same one as before, which the others know, unless it was closed."""
    first, other = kept_store(), kept_store()
    Board(first).offer(f"127.0.0.1 {other.port}")
    ways = StandingBy(first, ("127.0.0.1", first.port), {"founders": 1}, "127.0.0.1", 10.0)
    own = Board(first).row()[1]
    assert ways._own is not None
    if closed:
        ways._own[0].set(REIGN, ABANDONED)
    ways._store = Ended()  # type: ignore[assignment] # as above
    Board(other).offered((own,))
    other.set(REIGN, "a generation")
    assert not ways.seeks
    assert ways.look() or ways.look()
    assert (ways.keeps, ways.address) == (False, ("127.0.0.1", other.port))
    row = Board(other).row()
    assert row[0] == own
    assert len(row) == 1 + closed
    ways.close()
    assert Board(other).row() == row[: len(row) - 1]
