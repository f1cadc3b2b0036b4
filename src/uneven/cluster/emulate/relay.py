"""A process that forwards frames between two devices with a delay: ``python -m uneven.cluster.emulate.relay
DESCRIPTORS``.

It is for kernels that cannot delay packets (without netem). DESCRIPTORS are pairs in JSON, one for each cable. A line
on standard input such as ``2 0.04 0.05`` sets the latency of a direction in seconds, and the part of its frames to
drop. Both are initially 0. Direction 2 k leads from the first to the second device of pair k, 2 k + 1 back. The process
ends with its standard input.
"""

import ctypes
import json
import os
import random
import select
import sys
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

from uneven.runtime.jobs.parent_death import bound

_LARGEST_BYTES = 70_000  # the size of a frame of 64 KiB with its headers
_AT_A_TIME = 64  # the frames that one direction may read before the next one
_TIMER_SLACK = 29  # PR_SET_TIMERSLACK
_PRIORITY = 10


def command(pairs: Sequence[tuple[int, int]]) -> list[str]:
    """Return the command; its process ends with the thread that starts it, and needs a pipe as standard input."""
    return bound([sys.executable, "-P", "-m", "uneven.cluster.emulate.relay", json.dumps(pairs)])


class DelayLine:
    """One direction of a cable: frames leave in their order of arrival, each after the latency."""

    def __init__(self) -> None:
        self.latency_s = 0.0  # from now on; after a decrease frames still keep their order
        self.loss = 0.0  # part of the frames that is lost
        self.next_s = float("inf")  # time at which a frame is due; infinite without any
        self._under_way: deque[tuple[float, bytes]] = deque()
        self._last_s = 0.0

    def put(self, frame: bytes, now_s: float) -> None:
        if self.loss and random.random() < self.loss:
            return
        self._last_s = max(now_s + self.latency_s, self._last_s)
        self._under_way.append((self._last_s, frame))
        self.next_s = self._under_way[0][0]

    def get(self, now_s: float) -> bytes | None:
        """Return a frame that is due; None if there is none."""
        if self.next_s > now_s:
            return None
        frame = self._under_way.popleft()[1]
        self.next_s = self._under_way[0][0] if self._under_way else float("inf")
        return frame


class Relay:
    """The forwarder of all cables: ``pairs`` are their ends, non-blocking, ``orders`` has latency commands."""

    def __init__(self, pairs: Sequence[tuple[int, int]], orders: int) -> None:
        ways = [way for one, other in pairs for way in ((one, other), (other, one))]
        self._out = [(DelayLine(), other) for _, other in ways]
        self._into = {one: direction for (one, _), (direction, _) in zip(ways, self._out, strict=True)}
        self._orders = orders
        self._half = b""

    def run(self) -> None:
        """Forward until the commands end."""
        clock = time.monotonic
        watched = [self._orders, *self._into]
        while True:
            wait_s = min(direction.next_s for direction, _ in self._out) - clock()
            ready = select.select(watched, (), (), None if wait_s == float("inf") else max(wait_s, 0.0))[0]
            now_s = clock()
            for descriptor in ready:
                if descriptor == self._orders:
                    if not self._obey():
                        return
                else:
                    self._read(descriptor, now_s)
            now_s = clock()
            for direction, descriptor in self._out:
                while (frame := direction.get(now_s)) is not None:
                    _write(descriptor, frame)

    def _read(self, descriptor: int, now_s: float) -> None:
        direction = self._into[descriptor]
        for _ in range(_AT_A_TIME):
            try:
                frame = os.read(descriptor, _LARGEST_BYTES)
            except BlockingIOError:
                return
            direction.put(frame, now_s)

    def _obey(self) -> bool:
        """Read commands; return whether more can follow."""
        text = os.read(self._orders, 4096)
        *lines, self._half = (self._half + text).split(b"\n")
        for line in lines:
            number, latency_s, loss = line.split()
            direction, _ = self._out[int(number)]
            direction.latency_s = float(latency_s)
            direction.loss = float(loss)
        return bool(text)


def _write(descriptor: int, frame: bytes) -> None:
    try:
        os.write(descriptor, frame)
    except OSError:  # a frame that the other end cannot take is lost, as on a cable
        return


def be_punctual() -> None:
    """Ask for real-time priority and exact timers, as far as the kernel permits."""
    ctypes.CDLL(None).prctl(_TIMER_SLACK, ctypes.c_ulong(1), 0, 0, 0)
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(_PRIORITY))
    except PermissionError:
        with suppress(PermissionError):
            os.nice(-20)


if __name__ == "__main__":
    be_punctual()
    Relay([(one, other) for one, other in json.loads(sys.argv[1])], sys.stdin.fileno()).run()
