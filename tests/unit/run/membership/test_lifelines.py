"""A worker whose process has ended is seen by the others, without its launcher and before the silence limit."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection

import pytest
from torch.distributed import HashStore  # type: ignore[attr-defined] # its stubs say that it is private

from uneven.run.membership.failure_detector import FailureDetector, PeerConnections
from uneven.runtime.membership_board import CLOSED, DEAD, NEWS, OPEN, SESSION, Board


def _live(say: Connection, with_child: bool) -> None:
    lines = PeerConnections(None)
    child = os.fork() if with_child else -1
    if child:
        say.send((lines.address, child))
    while True:
        if child:
            lines.follow({})
        time.sleep(0.02)


class Other:
    """A process that can be looked after."""

    def __init__(self, *, with_child: bool = False) -> None:
        forks = multiprocessing.get_context("fork")
        hear, say = forks.Pipe(duplex=False)
        self.process = forks.Process(target=_live, args=(say, with_child), daemon=True)
        self.process.start()
        self.address, self.child = hear.recv()

    def kill(self) -> None:
        self.process.kill()
        self.process.join()


@pytest.fixture
def other() -> Iterator[Other]:
    found = Other()
    yield found
    found.kill()


def until(true: Callable[[], object]) -> None:
    while not true():
        time.sleep(0.01)


def established(lines: PeerConnections) -> bool:
    """Whether nothing more happens on the connection that was begun."""
    return lines.gone(0.2) == []


def test_a_process_that_was_killed_is_gone_and_one_that_is_stopped_is_not(other: Other) -> None:
    own = PeerConnections(None)
    own.follow({7: other.address})
    assert established(own)
    os.kill(other.process.pid or 0, signal.SIGSTOP)
    assert own.gone(0.3) == []
    other.kill()
    until(lambda: 7 in own.gone(1.0))
    assert own.gone(0.05) == [], "it is said once"
    own.close()


def test_a_child_that_outlives_a_worker_does_not_hide_its_end() -> None:
    other = Other(with_child=True)
    own = PeerConnections(None)
    own.follow({1: other.address})
    assert established(own)
    try:
        other.kill()
        until(lambda: 1 in own.gone(1.0))
    finally:
        os.kill(other.child, signal.SIGKILL)
    own.close()


def test_a_connection_that_ends_although_the_other_lives_is_opened_anew(other: Other) -> None:
    own = PeerConnections(None)
    own.follow({1: other.address})
    assert established(own)
    own._lines[1][1].shutdown(2)  # as something on the way might
    assert own.gone(0.5) == []
    assert own.gone(0.3) == []
    other.kill()
    until(lambda: 1 in own.gone(1.0))
    own.close()


def test_where_nobody_was_ever_reached_nobody_is_gone() -> None:
    own, closed = PeerConnections(None), PeerConnections(None)
    closed.close()
    own.follow({1: closed.address})
    assert own.gone(0.3) == []
    own.close()


def test_those_who_have_hung_up_make_room() -> None:
    own = PeerConnections(None)
    for _ in range(5):
        guest = PeerConnections(None)
        guest.follow({0: own.address})
        until(lambda: (own.follow({}), own._guests)[1])
        guest.close()
        until(lambda: (own.follow({}), not own._guests)[1])
    own.close()


@pytest.mark.parametrize(
    ("session", "why"),
    [
        (OPEN, "its process has ended, and its launcher with it"),
        (CLOSED, "its session ended with the error in its output"),
    ],
)
def test_a_worker_that_ends_without_its_launcher_is_buried_long_before_it_was_silent(
    other: Other, session: str, why: str
) -> None:
    board = Board(HashStore())
    board.write("lifeline/1", other.address)
    board.write(f"{SESSION}/1", session)
    watch = FailureDetector(Board(board.store), 0, (0, 1), silence_s=20.0)
    until(lambda: 1 in watch._lifelines._lines)
    other.kill()
    until(lambda: board.look(f"{DEAD}/1"))
    assert board.look(f"{DEAD}/1") == why
    watch.close()


def test_a_worker_that_has_left_is_not_buried(other: Other) -> None:
    board = Board(HashStore())
    board.write("lifeline/1", other.address)
    watch = FailureDetector(Board(board.store), 0, (0, 1), silence_s=20.0)
    until(lambda: 1 in watch._lifelines._lines)
    board.write("left/1", "")
    other.kill()
    until(lambda: 1 in watch._lifelines._ended)
    time.sleep(0.5)
    assert board.look(f"{DEAD}/1") is None
    watch.close()


class Parting(Board):
    """The thread that trains stops listening while the watch looks for news."""

    watch: FailureDetector | None = None

    def count(self, key: str, more: int = 0) -> int:
        if key == NEWS and self.watch is not None:
            self.watch.listener = None
            return 1
        return super().count(key, more)


def test_news_that_come_as_somebody_stops_listening_end_no_thread() -> None:
    board = Parting(HashStore())
    watch = FailureDetector(board, 0, (0,), 0.0)
    heard: list[dict[int, str]] = []
    watch.listener = heard.append
    board.watch = watch
    until(lambda: watch.news == 1)
    assert heard == [{}]
    assert watch._thread.is_alive()
    watch.close()
