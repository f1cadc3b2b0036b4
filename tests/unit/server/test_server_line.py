"""A line may be told to send, and to end, at any moment of its thread's life."""

from __future__ import annotations

from pathlib import Path

import pytest

from uneven.server import ZmqLine, make_keys
from uneven.server.wire import Message


class Ear:
    """Hears what the line says, and breaks it at the first beat if told so."""

    def __init__(self, breaks: bool) -> None:
        self.breaks, self.error = breaks, None

    def received(self, shard: int, message: Message) -> None:
        raise AssertionError("there is no shard")

    def beat(self, shard: int) -> None:
        if self.breaks:
            raise ValueError("as told")

    def broken(self, error: Exception) -> None:
        self.error = error


@pytest.fixture
def line(tmp_path: Path) -> ZmqLine:
    make_keys(tmp_path / "server")
    return ZmqLine(tmp_path / "server", 1, beat_s=0.0005)


def test_a_line_whose_thread_has_not_begun_takes_what_is_posted_and_ends(line: ZmqLine) -> None:
    line.post(0, [])
    line.close()


def test_a_line_whose_thread_has_ended_by_itself_takes_what_is_posted_and_ends(line: ZmqLine) -> None:
    ear = Ear(breaks=True)
    line.open(ear)
    line._thread.join(20.0)
    assert str(ear.error) == "as told"
    line.post(0, [])
    line.close()
    line.close()
    line.post(0, [])


def test_an_end_is_heard_at_once_however_many_calls_came_before(line: ZmqLine) -> None:
    ear = Ear(breaks=False)
    line.open(ear)
    for _ in range(5000):  # more than a socket keeps
        line.post(0, [])
    line.close()
    assert not line._thread.is_alive()
    assert ear.error is None
