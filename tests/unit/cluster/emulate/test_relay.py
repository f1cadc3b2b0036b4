"""The process that delays packets, between sockets instead of devices."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from uneven.cluster.emulate.relay import DelayLine, command
from uneven.runtime.jobs.processes import import_path

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="such devices are Linux's")


def test_frames_come_out_in_their_order_after_the_latency() -> None:
    direction = DelayLine()
    assert direction.next_s == float("inf")
    direction.put(b"at once", 1.0)
    direction.latency_s = 0.5
    direction.put(b"later", 1.0)
    assert direction.get(1.0) == b"at once"
    assert direction.get(1.25) is None
    assert direction.next_s == 1.5
    direction.latency_s = 0.25
    direction.put(b"not before", 1.0)  # it may not overtake
    assert direction.next_s == 1.5
    assert [direction.get(1.5) for _ in range(3)] == [b"later", b"not before", None]
    assert direction.next_s == float("inf")


def test_a_line_loses_the_part_of_the_frames_that_it_is_given() -> None:
    direction = DelayLine()
    direction.loss = 0.25
    for _ in range(4000):
        direction.put(b"frame", 1.0)
    arrived = sum(1 for _ in iter(lambda: direction.get(1.0), None))
    assert 2800 < arrived < 3200, "seven times the standard deviation on both sides"


@contextmanager
def relay(cables: int) -> Iterator[tuple[subprocess.Popen[bytes], list[socket.socket]]]:
    """The process, and the far ends of its devices."""
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2 * cables)]
    near, far = [one for one, _ in pairs], [other for _, other in pairs]
    for end in near:
        end.setblocking(False)
    for end in far:
        end.settimeout(60.0)
    numbers = [end.fileno() for end in near]
    process = subprocess.Popen(
        command(list(zip(numbers[::2], numbers[1::2], strict=True))),
        stdin=subprocess.PIPE,
        pass_fds=numbers,
        bufsize=0,
        env={**os.environ, "PYTHONPATH": import_path()},
    )
    try:
        yield process, far
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.kill()
        process.wait()
        for end in (*near, *far):
            end.close()


def takes_s(one: socket.socket, other: socket.socket) -> float:
    begun = time.monotonic()
    one.send(b"first")
    one.send(b"second")
    assert [other.recv(100), other.recv(100)] == [b"first", b"second"]
    return time.monotonic() - begun


def test_every_direction_of_every_cable_has_a_latency_of_its_own() -> None:
    with relay(cables=2) as (process, (a, b, c, d)):
        assert process.stdin is not None
        for one, other in ((a, b), (b, a), (c, d), (d, c)):
            takes_s(one, other)
        process.stdin.write(b"0 0.3 0.0\n3 0.1")  # an order may come in two pieces
        process.stdin.write(b"5 0.0\n")
        while takes_s(d, c) < 0.15:  # until it has heard of both
            pass
        assert takes_s(a, b) >= 0.3
        assert min(takes_s(b, a) for _ in range(20)) < 0.1  # as it was, in one of twenty at least
        assert min(takes_s(c, d) for _ in range(20)) < 0.1


def test_it_ends_with_its_standard_input() -> None:
    with relay(cables=1) as (process, _):
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) == 0


def test_what_nobody_takes_is_lost_and_the_rest_goes_on() -> None:
    with relay(cables=1) as (process, (a, b)):
        for _ in range(5000):
            a.send(bytes(1000))  # more than the other end's buffer holds: nobody reads there yet
        b.send(b"still here")
        assert a.recv(100) == b"still here"
        assert process.poll() is None
