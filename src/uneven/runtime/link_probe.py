"""The rate and the latency between two machines, over TCP.

A listener answers; the other machine asks for one thing on each connection: to echo single bytes, to receive for some
seconds, or to send. A question is 16 bytes: a mark, a letter, and the seconds. The content is zeros, and no byte is
interpreted. The receiver measures, after a quarter of the time: then slow start has ended and buffers are full.
"""

import socket
import statistics
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic

from uneven.errors import LaunchError

PORT = 29550  # by default
LONGEST_S = 60.0  # of one question
_MOST = 64  # connections at a time
_MARK = b"uneven\x00\x01"
_QUESTION = struct.Struct("!8scxxxf")
_ANSWER = struct.Struct("!d")  # bytes/s
_ECHO, _UP, _DOWN = b"E", b"U", b"D"
_PIECE_BYTES = 1 << 18
_ZEROS = bytes(_PIECE_BYTES)
_SKIPPED = 0.25  # part of the time that does not count [default]
_ECHOES = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkMeasurement:
    """The results; rates are payload in bit/s, from this machine (up) and to it (down)."""

    flows: int
    up_bit_per_s: float  # of all connections together …
    down_bit_per_s: float
    flow_up_bit_per_s: float  # … and of a single one
    flow_down_bit_per_s: float
    round_trip_s: float  # median
    jitter_s: float  # 90th percentile of the round trip minus its median

    def lines(self) -> list[str]:
        """Return lines for a node in a cluster description."""
        one = min(self.flow_up_bit_per_s, self.flow_down_bit_per_s)
        shown = [
            f"up_bit_per_s = {self.up_bit_per_s:.3g}",
            f"down_bit_per_s = {self.down_bit_per_s:.3g}",
            "achieved = 1.0  # the rates are payload",
        ]
        if one < 0.95 * min(self.up_bit_per_s, self.down_bit_per_s):
            shown.append(f"flow_bit_per_s = {one:.3g}")
        # The path leads over both nodes' links to their switch.
        return [*shown, f"latency_s = {self.round_trip_s / 4:.3g}  # a quarter of the round trip"]


def listen(host: str, port: int, ready: Callable[[int], None], *, timeout_s: float, stop: threading.Event) -> None:
    """Answer questions on an address until ``stop`` is set; ``ready`` gets the port. Raises LaunchError: the address
    cannot be used."""
    try:
        server = socket.create_server((host, port))
    except OSError as error:
        raise LaunchError(
            f"cannot listen on {host}:{port}: {error.strerror}: give an address of this machine"
        ) from error
    free = threading.BoundedSemaphore(_MOST)
    with server:
        server.settimeout(0.2)
        ready(server.getsockname()[1])
        while not stop.is_set():
            try:
                line, _ = server.accept()
            except TimeoutError:
                continue
            if free.acquire(blocking=False):
                threading.Thread(target=_answer, args=(line, timeout_s, free), daemon=True).start()
            else:
                line.close()


def measure(host: str, port: int, *, seconds: float = 2.0, flows: int = 8, timeout_s: float = 10.0) -> LinkMeasurement:
    """Measure between this machine and a listener. ``seconds``: of each of four transfers. Raises LaunchError, with the
    address: the listener does not answer, or something else does.

    Example: ``measure("10.0.0.2", PORT).lines()``.
    """

    def rates(letter: bytes, count: int) -> float:
        with ThreadPoolExecutor(count) as pool:
            return sum(pool.map(lambda _: _rate(letter, host, port, seconds, timeout_s), range(count)))

    trips_s = sorted(_echoes(host, port, timeout_s))
    middle_s = statistics.median(trips_s)
    one = {letter: 8 * rates(letter, 1) for letter in (_UP, _DOWN)}
    several = {letter: max(one[letter], 8 * rates(letter, flows)) for letter in (_UP, _DOWN)}
    return LinkMeasurement(
        flows=flows,
        up_bit_per_s=several[_UP],
        down_bit_per_s=several[_DOWN],
        flow_up_bit_per_s=one[_UP],
        flow_down_bit_per_s=one[_DOWN],
        round_trip_s=middle_s,
        jitter_s=trips_s[int(0.9 * (len(trips_s) - 1))] - middle_s,
    )


@contextmanager
def _asked(letter: bytes, host: str, port: int, seconds: float, timeout_s: float) -> Iterator[socket.socket]:
    try:
        with socket.create_connection((host, port), timeout=timeout_s) as line:
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            line.sendall(_QUESTION.pack(_MARK, letter, seconds))
            yield line
    except (OSError, EOFError) as error:
        why = getattr(error, "strerror", None) or str(error) or f"no answer within {timeout_s:g} s"
        raise LaunchError(
            f"{host}:{port}: {why}: start `uneven measure-link --listen --host HOST` there, and let its port through"
        ) from error


def _echoes(host: str, port: int, timeout_s: float) -> list[float]:
    found = []
    with _asked(_ECHO, host, port, 0.0, timeout_s) as line:
        for _ in range(_ECHOES):
            began_s = monotonic()
            line.sendall(b"\x00")
            _exactly(line, 1)
            found.append(monotonic() - began_s)
    return found[1:]  # the first one includes the start of the answering thread


def _rate(letter: bytes, host: str, port: int, seconds: float, timeout_s: float) -> float:
    """Return bytes/s of one connection."""
    with _asked(letter, host, port, seconds, timeout_s) as line:
        if letter == _DOWN:
            return _received(line, seconds)
        _send(line, seconds)
        line.shutdown(socket.SHUT_WR)
        (found,) = _ANSWER.unpack(_exactly(line, _ANSWER.size))
        return float(found)


def _answer(line: socket.socket, timeout_s: float, free: threading.BoundedSemaphore) -> None:
    try:
        with line:
            line.settimeout(timeout_s)
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            mark, letter, seconds = _QUESTION.unpack(_exactly(line, _QUESTION.size))
            if mark != _MARK or not 0.0 <= seconds <= LONGEST_S:
                return
            if letter == _ECHO:
                while byte := line.recv(1):
                    line.sendall(byte)
            elif letter == _UP:
                line.sendall(_ANSWER.pack(_received(line, seconds)))
            elif letter == _DOWN:
                _send(line, seconds)
    except (OSError, EOFError):
        pass  # the other side has gone; the next question has another connection
    finally:
        free.release()


def _send(line: socket.socket, seconds: float) -> None:
    ends_s = monotonic() + seconds
    while monotonic() < ends_s:
        line.sendall(_ZEROS)


def _received(line: socket.socket, seconds: float) -> float:
    """Read to the end; return bytes/s without the first part of the time, or of all if nothing came later."""
    room = bytearray(_PIECE_BYTES)
    began_s = now_s = since_s = until_s = monotonic()
    counted = came = 0
    while got := line.recv_into(room):
        now_s = monotonic()
        came += got
        if now_s - began_s < _SKIPPED * seconds:
            since_s = now_s
        elif now_s - began_s <= seconds:
            counted += got
            until_s = now_s
    if not came:
        raise EOFError("nothing arrived")
    return counted / (until_s - since_s) if until_s > since_s else came / max(now_s - began_s, 1e-6)


def _exactly(line: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        more = line.recv(size - len(found))
        if not more:
            raise EOFError("the connection ended")
        found += more
    return found
