"""The background thread that transports all of a worker's messages to its shards over ZeroMQ."""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import zmq

from uneven.errors import ConfigError
from uneven.runtime.messages.keys import SERVER, Address, Keys, address, client_keys, shards_in
from uneven.runtime.parameter_server.pure import wire
from uneven.runtime.parameter_server.pure.wire import Refused

_WAKE = "inproc://wake"
_LINGER_MS = 500  # the longest delay of the end by undelivered messages; messages/sockets.py explains why it is not 0

_DEAD_S = 60.0
"""The silence after which a connection is replaced although the shard's address is the same: its machine may have
failed silently. A piece of a message takes as long at half a megabit per second."""

_QUEUE = 64  # the messages that may wait in a socket. Lost ones are sent again, so a full queue only causes a delay.


class Codec(Protocol):
    """A module with functions that turn messages into frames and back."""

    def encode(self, message: Any, /) -> list[Any]: ...
    def decode(self, frames: Sequence[Any], /) -> Any: ...


class Ear(Protocol):
    """The receiver of a line's events, a client. It posts its answers."""

    def received(self, shard: int, message: Any) -> None:
        """Take a message."""

    def beat(self, shard: int) -> None:
        """Send a heartbeat."""

    def broken(self, error: Exception) -> None:
        """Take the error that has ended the line."""


class ShardLine(Protocol):
    """The transport of messages to shards and back, in order for each shard. No method waits for a shard."""

    shards: int

    def open(self, ear: Ear) -> None: ...

    def post(self, shard: int, messages: Sequence[Any]) -> None: ...

    def where(self, shard: int) -> str: ...

    def close(self) -> None:
        """Send the queued messages, and end. Idempotent."""


class ZmqLine:
    """A :class:`ShardLine` to shards whose addresses are in a directory.

    Args:
        directory: that of :func:`uneven.runtime.messages.keys.make_keys`.
        beat_s: seconds between two heartbeats.
        refresh_s: silence in seconds after which a shard's address is read again; a changed address, or a shard that
            has never answered, gets a new connection.
        local: use a shard's socket in the directory on this machine, instead of encrypted TCP.
        codec: of the messages; by default that of the parameter server.

    Raises:
        ConfigError: no keys, or keys that others may read.
    """

    def __init__(
        self,
        directory: Path,
        shards: int,
        *,
        beat_s: float = 0.5,
        refresh_s: float = 3.0,
        local: bool = True,
        codec: Codec = wire,
    ) -> None:
        self.shards = shards
        self._local = local
        self._codec = codec
        self._directory = directory
        self._beat_s = beat_s
        self._refresh_s = refresh_s
        self._keys: Keys = client_keys(directory)
        self._posted: deque[tuple[int, Any]] = deque()
        self._remotes: dict[int, str] = {}  # shard → its address for other machines, as last read
        self._context = zmq.Context()
        self._context.setsockopt(zmq.LINGER, _LINGER_MS)
        self._wakeup = self._context.socket(zmq.PAIR)
        self._wakeup.bind(_WAKE)
        self._waking = threading.Lock()
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()

    @classmethod
    def of_run(cls, run_directory: Path) -> "ZmqLine":
        """Return a line to the shards of ``uneven run --servers``. Raises ConfigError if there are none."""
        directory = run_directory / SERVER
        shards = shards_in(directory)
        if not shards:
            raise ConfigError(f"{directory} names no shards: start the script with `uneven run --servers N`")
        return cls(directory, shards)

    def open(self, ear: Ear) -> None:
        self._thread = threading.Thread(target=self._run, args=(ear,), name="uneven-line", daemon=True)
        self._thread.start()

    def post(self, shard: int, messages: Sequence[Any]) -> None:
        self._posted.extend((shard, message) for message in messages)
        self._wake()

    def where(self, shard: int) -> str:
        return self._remotes.get(shard, f"no address in {self._directory} yet")

    def close(self) -> None:
        if self._ended.is_set():
            return
        self._ended.set()
        self._wake()
        if self._thread is not None:
            self._thread.join()
        with self._waking:
            self._wakeup.close()
        self._context.destroy()

    def _wake(self) -> None:
        with self._waking:  # a ZeroMQ socket must not be used by two threads at the same time
            if self._wakeup.closed:
                return
            # A check in advance would not do: the thread may end in between.
            with contextlib.suppress(zmq.Again):  # not started, ended, or enough wake-ups are queued
                self._wakeup.send(b"", zmq.NOBLOCK)

    def _find(self, shard: int) -> Callable[[], Address | None]:
        def find() -> Address | None:
            found = address(self._directory, shard)
            if found is not None:
                self._remotes[shard] = found.remote  # the directory may be removed, together with the shard
            return found if self._local or found is None else found._replace(local=None)

        return find

    def _run(self, ear: Ear) -> None:
        try:
            self._converse(ear)
        except (zmq.ZMQError, OSError, ValueError, RuntimeError) as error:
            ear.broken(error)

    def _converse(self, ear: Ear) -> None:
        wakeup = self._context.socket(zmq.PAIR)
        wakeup.connect(_WAKE)
        lines = [_Connection(self._context, self._keys, self._find(shard), self._codec) for shard in range(self.shards)]
        poller = zmq.Poller()
        poller.register(wakeup, zmq.POLLIN)
        next_beat_s = 0.0
        try:
            while True:
                for shard, line in enumerate(lines):
                    line.refresh(poller, time.monotonic(), self._refresh_s)
                    for message in line.messages():
                        ear.received(shard, message)
                if time.monotonic() >= next_beat_s:
                    next_beat_s = time.monotonic() + self._beat_s
                    for shard in range(self.shards):
                        ear.beat(shard)
                while wakeup.poll(0):
                    wakeup.recv()
                ended = self._ended.is_set()  # read before the last drain of the queue, so no posted message is missed
                while self._posted:
                    shard, message = self._posted.popleft()
                    lines[shard].send(message)
                if ended:
                    break
                poller.poll(max(1, int(1e3 * (next_beat_s - time.monotonic()))))
        finally:
            wakeup.close()
            for line in lines:
                line.close()


class _Connection:
    """One socket to one shard, replaced after a long silence."""

    def __init__(self, context: Any, keys: Keys, find: Callable[[], Address | None], codec: Codec) -> None:
        self._codec = codec
        self._context = context
        self._keys = keys
        self._find = find
        self._in_vain = False  # the local address was tried last, without success
        self._socket: Any = None
        self._heard_s = self._looked_s = 0.0
        self._target: Address | None = None
        self._found: Address | None = None  # address of the peer, once the shard has answered on this socket

    def refresh(self, poller: Any, now_s: float, limit_s: float) -> None:
        """Connect or reconnect if there is an address; at most once in ``limit_s``."""
        silent_s = now_s - self._heard_s
        if silent_s < limit_s if self._socket is not None else silent_s < min(limit_s, 0.05):
            return
        # Heartbeats queue behind data, for seconds if a large message passes a slow link. A new connection would
        # discard what has arrived, again and again. So a connection that has worked stays while the address is the
        # same; ZeroMQ repairs it automatically if it breaks.
        kept = self._found is not None and silent_s < _DEAD_S
        if kept and now_s - self._looked_s < limit_s:
            return
        self._looked_s, found = now_s, self._find()
        if kept and found in (self._found, None):
            return
        self._heard_s = now_s
        if found is None:
            return
        self._target, self._found = found, None
        local = found.local is not None and not self._in_vain
        self._in_vain = local
        if self._socket is not None:
            poller.unregister(self._socket)
            self._socket.close()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.SNDHWM, _QUEUE)
        self._socket.setsockopt(zmq.RCVHWM, _QUEUE)
        if not local:
            self._keys.join(self._socket)
        self._socket.connect(found.local if local else found.remote)
        poller.register(self._socket, zmq.POLLIN)

    def messages(self) -> list[Any]:
        """Return the received messages. Invalid ones are skipped: only the shard has the keys for this connection."""
        found: list[Any] = []
        while self._socket is not None and self._socket.poll(0):
            frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            try:
                found.append(self._codec.decode([frame.buffer for frame in frames]))
                self._heard_s, self._in_vain, self._found = time.monotonic(), False, self._target
            except Refused:  # the shard has another version; its silence is reported
                continue
        return found

    def send(self, message: Any) -> None:
        """Send a message if the socket accepts it; otherwise the answer to a later ping reveals the loss."""
        if self._socket is not None:
            with contextlib.suppress(zmq.Again):
                self._socket.send_multipart(self._codec.encode(message), zmq.NOBLOCK, copy=False)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
