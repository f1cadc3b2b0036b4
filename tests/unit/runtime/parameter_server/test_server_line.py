"""A line may be told to send, and to end, at any moment of its thread's life."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import zmq

from uneven.runtime.messages import sockets
from uneven.runtime.messages.keys import local_target, publish
from uneven.runtime.parameter_server import Client, ZmqLine, make_keys, table_of
from uneven.runtime.parameter_server.pure.shard import Shard
from uneven.runtime.parameter_server.pure.wire import Kind, Message, decode, encode


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


def test_a_shard_that_was_stopped_itself_reads_what_waits_before_it_counts_a_worker_as_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_keys(tmp_path)
    at_s = [0.0]
    monkeypatch.setattr(sockets, "time", SimpleNamespace(monotonic=lambda: at_s[-1]))
    shard = Shard(7, range(2))
    serving = sockets.ShardSockets(tmp_path, 0, sockets.LOOPBACK, shard, encode)
    line, table = partial(ZmqLine, tmp_path, 1, beat_s=0.05), table_of([(1,)], "float64", 1)
    clients = [Client(rank, table, [np.zeros(1)], line()) for rank in range(2)]
    later_s = iter([20.0, 23.0])

    def ended() -> bool:  # once a turn; the clock jumps when the shard has heard both
        if {one.heard_s for one in shard._crew.values()} == {at_s[-1]} and shard.serving and len(at_s) < 3:
            at_s.append(next(later_s))
        return shard._now_s == 23.0

    serving.serve(ended)
    serving.close()
    for one in clients:
        one.close()
    assert (shard.counts["left"], [shard.here(rank) for rank in range(2)]) == (0, [True, True])


class Pinger:
    """Asks for a sign of life at each beat, and hears the answers."""

    def __init__(self) -> None:
        self.line: ZmqLine | None = None
        self.heard = 0

    def received(self, shard: int, message: Message) -> None:
        self.heard += 1

    def beat(self, shard: int) -> None:
        assert self.line is not None
        self.line.post(shard, [Message(kind=Kind.PING)])

    def broken(self, error: Exception) -> None:
        raise AssertionError(error)


class Listener:
    """Where a shard would listen; answers when it is told to."""

    def __init__(self, context: Any, directory: Path) -> None:
        self.socket = context.socket(zmq.ROUTER)
        self.socket.bind(local_target(directory, 0))
        publish(directory, 0, "tcp://127.0.0.1:9", local_target(directory, 0))

    def waiting(self, within_s: float = 20.0) -> list[tuple[bytes, Message]]:
        """What has come, with the connection that it came by; at least one."""
        assert self.socket.poll(int(1e3 * within_s))
        found = []
        while self.socket.poll(0):
            route, *frames = self.socket.recv_multipart()
            found.append((route, decode(frames)))
        return found

    def answer(self) -> bytes:
        """Once, to the newest; the connection."""
        route, _ = self.waiting()[-1]
        self.socket.send_multipart([route, *encode(Message(kind=Kind.WELCOME))])
        return route


@pytest.fixture
def pinging(tmp_path: Path) -> Iterator[tuple[Pinger, Path, Listener]]:
    directory, context = tmp_path / "server", zmq.Context()
    make_keys(directory)
    shard, pinger = Listener(context, directory), Pinger()
    pinger.line = ZmqLine(directory, 1, beat_s=0.02, refresh_s=0.1)
    pinger.line.open(pinger)
    yield pinger, directory, shard
    pinger.line.close()
    shard.socket.close(linger=0)
    context.term()


def heard(pinger: Pinger, count: int) -> bool:
    end = time.monotonic() + 20.0
    while pinger.heard < count and time.monotonic() < end:
        time.sleep(0.005)
    return pinger.heard >= count


def answered(pinger: Pinger, shard: Listener) -> bytes:
    """Answer until that is heard: who has heard nothing connects anew, and an answer to what it closed is lost."""
    end = time.monotonic() + 20.0
    while pinger.heard < 1 and time.monotonic() < end:
        route = shard.answer()
        time.sleep(0.01)
    assert pinger.heard
    return route


def test_who_has_been_heard_and_is_where_it_was_is_not_connected_to_anew(
    pinging: tuple[Pinger, Path, Listener],
) -> None:
    """Its signs of life may wait behind a large message on a slow link, which would be thrown away each time."""
    pinger, _, shard = pinging
    route = answered(pinger, shard)
    time.sleep(0.5)  # five times as long as it may be silent before its address is read again
    shard.waiting()
    time.sleep(0.2)
    assert {by for by, _ in shard.waiting()} == {route}


def test_a_shard_that_has_been_started_again_is(pinging: tuple[Pinger, Path, Listener]) -> None:
    pinger, directory, shard = pinging
    route = answered(pinger, shard)
    path = directory / "shard-0.address"
    told = json.loads(path.read_text())
    path.write_text(json.dumps({**told, "pid": told["pid"] + 1}))
    end = time.monotonic() + 20.0
    while (by := shard.waiting()[-1][0]) == route and time.monotonic() < end:
        time.sleep(0.02)
    assert by != route


def test_a_silent_shard_that_was_never_heard_is_tried_again(pinging: tuple[Pinger, Path, Listener]) -> None:
    _, directory, shard = pinging
    publish(directory, 0, "tcp://127.0.0.1:9", local_target(directory, 0))
    found: set[bytes] = set()
    end = time.monotonic() + 20.0
    while len(found) < 2 and time.monotonic() < end:
        found |= {by for by, _ in shard.waiting()}
    assert len(found) == 2
