"""Push and pull of 16 MB against a plain ZeroMQ copy of the same bytes, both with a process on the other side."""

import os
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import zmq

from uneven.runtime.messages.keys import client_keys, server_keys
from uneven.runtime.messages.process import shard_process
from uneven.runtime.parameter_server import Client, ZmqLine, make_keys, table_of
from uneven.runtime.parameter_server.pure.wire import PIECE_BYTES
from uneven_bench.harness.figures import Spread, by_turns
from uneven_bench.harness.program import begun_module, wait_for, write_whole

BYTES = 16 << 20
COUNT = BYTES // PIECE_BYTES
PLAIN = "plain copy, in one frame"
PIECES = "plain copy, in pieces as ours"
SECRET = "plain copy, in pieces as ours, encrypted"
FAR = "push and pull, TCP, encrypted"
NEAR = "push and pull, within one machine"

WARM = 3


def compare(rounds: int, say: Callable[[str, float], None], directory: Path) -> dict[str, Any]:
    """Measure all four in turn, ``rounds`` times. Result: ``seconds`` (name → median), ``of`` (ours → plain copy →
    [median, lower, upper quartile] of its time divided by ours, by round: 1 is as fast, 0.5 half as fast), ``bytes``
    each way."""
    for name in ("echo", "far", "near"):
        make_keys(directory / name)
    place = directory / "echo"
    with Echo(place, 1, False) as one, Echo(place, COUNT, False) as pieces, Echo(place, COUNT, True) as secret:
        ways: dict[str, Callable[[], None]] = {PLAIN: one.copy, PIECES: pieces.copy, SECRET: secret.copy}
        with (
            shard_process(directory / "far", 0, 1),
            shard_process(directory / "near", 0, 1),
            Pusher(directory / "far", local=False) as far,
            Pusher(directory / "near", local=True) as near,
        ):
            ways |= {FAR: far.both, NEAR: near.both}
            say(f"{rounds} rounds", 0.0)
            times = by_turns(ways, rounds, warm=WARM)  # the first rounds touch new memory
    return {
        "bytes": BYTES,
        "seconds": {name: statistics.median(each) for name, each in times.items()},
        "of": {
            ours: {plain: Spread.ratio(times[plain], times[ours]).three for plain in (PLAIN, PIECES, SECRET)}
            for ours in (FAR, NEAR)
        },
    }


class Pusher:
    """A worker with 16 MiB of parameters and one shard."""

    def __init__(self, directory: Path, *, local: bool) -> None:
        elements = BYTES // 4
        self._arrays = [np.full(elements // 4, 0.5, np.float32) for _ in range(4)]
        table = table_of([(elements // 4,)] * 4, "float32", 1)
        self._client = Client(0, table, self._arrays, ZmqLine(directory, 1, local=local))
        self._step = 0

    def __enter__(self) -> "Pusher":
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def both(self) -> None:
        """Push and pull, from tensors to tensors."""
        self._client.push(self._step, self._arrays, scale=1e-3)
        self._client.pull().into(self._arrays)
        self._step += 1


class Echo:
    """A process that returns its messages, and a socket to it."""

    def __init__(self, directory: Path, pieces: int, secret: bool) -> None:
        self._directory = directory
        self._pieces = pieces
        self._secret = secret
        self._data = np.full(BYTES // pieces // 4, 0.5, np.float32)

    def __enter__(self) -> "Echo":
        place = self._directory / f"echo-{self._pieces}-{self._secret}"
        self._process = begun_module("uneven_bench.server.copy", self._directory, place, int(self._secret))
        wait_for(place.exists, "the other side", 60.0)
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        if self._secret:
            client_keys(self._directory).join(self._socket)
        self._socket.connect(place.read_text())
        return self

    def __exit__(self, *_: object) -> None:
        self._context.destroy(linger=0)
        self._process.kill()

    def copy(self) -> None:
        self._socket.send_multipart([b"", *(self._data.data for _ in range(self._pieces))], copy=False)
        assert len(self._socket.recv_multipart(copy=False)) == self._pieces + 1


def main() -> None:
    """Be the other side of :class:`Echo`."""
    directory, place, secret = Path(sys.argv[1]), Path(sys.argv[2]), bool(int(sys.argv[3]))
    socket = zmq.Context().socket(zmq.ROUTER)
    if secret:
        server_keys(directory).serve(socket, b"echo")
    port = socket.bind_to_random_port("tcp://127.0.0.1")
    write_whole(place, f"tcp://127.0.0.1:{port}")
    parent = os.getppid()
    while os.getppid() == parent:
        if socket.poll(1000):
            socket.send_multipart(socket.recv_multipart(copy=False), copy=False)


if __name__ == "__main__":
    main()
