"""Messages of any length between workers: in order, encrypted, over ZeroMQ.

Every worker has a key pair of its own for the run; the public ones pass over the line on which workers compare their
settings. A socket lets in nobody else, and who sent a message is told by its key, not by what it says.

Where a line carries nothing for a while, TCP sends again what was under way. ZeroMQ makes a connection that was closed
anew, without what was on it; messages are numbered, so that one is missed where it was lost.
"""

from __future__ import annotations

import json
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import zmq
from zmq.utils import z85
from zmq.utils.monitor import recv_monitor_message

from uneven.errors import ConfigError

_DOMAIN = b"uneven"
_LINGER_MS = 1000
"""See ``uneven.server.host``."""

_LOOK_MS = 50
_GRACE_S = 0.3
"""How long what a worker has sent may still take when its connection is found to be closed."""

_HELLO, _MESSAGE, _BYE, _EARLY = b"\0", b"\1", b"\2", b"\3"


class Post:
    """One worker's end. All workers of a run make theirs at the same time, also those that have no peers.

    Args:
        peers: ranks that it sends to and hears; each names the other.
        texts: everybody's text, by rank.
        meeting: an address that shows on which of its interfaces a worker is reached; None where all are on one
            machine.
        most_bytes: of a message.
        timeout_s: how long one waits for a message.
        two_ways: whether there is a second connection to each, on which short messages overtake what is on the first.

    Attributes:
        key: this worker's public one, in Z85.
        patient: whether a wait is to go on, however long it takes; None where ``timeout_s`` ends it.

    Raises:
        ConfigError: no socket could be bound.
        RuntimeError: a peer did not come.
    """

    def __init__(
        self, rank: int, peers: Sequence[int], texts: Callable[[str], Sequence[str]], *, meeting: str | None,
        most_bytes: int, timeout_s: float, two_ways: bool = False,
    ) -> None:  # fmt: skip
        self._rank, self._timeout_s = rank, timeout_s
        self.patient: Callable[[], bool] | None = None
        self._context = zmq.Context()
        self._context.setsockopt(zmq.LINGER, _LINGER_MS)
        self._guard = self._context.socket(zmq.REP)
        self._guard.bind("inproc://zeromq.zap.01")
        self._in = self._context.socket(zmq.PULL)
        self.key, secret = zmq.curve_keypair()
        public = self.key
        self._known: dict[bytes, int] = {}
        try:
            endpoint = self._listen(public, secret, meeting, most_bytes)
        except zmq.ZMQError as error:
            self._context.destroy()
            raise ConfigError(
                f"rank {rank} cannot listen for entries at {meeting or 'this machine'}: {error}"
            ) from error
        said = [json.loads(one) for one in texts(json.dumps({"at": endpoint, "key": public.decode()}))]
        self._known = {z85.decode(one["key"]): other for other, one in enumerate(said)}
        self._out = {peer: self._connect(said[peer], public, secret) for peer in peers}
        self._fast = {peer: self._connect(said[peer], public, secret) for peer in (peers if two_ways else ())}
        self._early: dict[int, deque[bytes]] = {peer: deque() for peer in self._fast}
        self._monitors = {peer: out.get_monitor_socket(zmq.EVENT_DISCONNECTED) for peer, out in self._out.items()}
        self._boxes: dict[int, deque[Any]] = {peer: deque() for peer in peers}
        self._sent, self._heard = dict.fromkeys(peers, 0), dict.fromkeys(peers, 0)  # messages
        self._broken: dict[int, str] = {}  # who cannot be heard any more, and why
        self._gone: set[int] = set()
        self._poller = zmq.Poller()
        for one in (self._in, self._guard, *self._monitors.values()):
            self._poller.register(one, zmq.POLLIN)
        try:
            self._all_say(_HELLO)
        except BaseException:
            self.close(failed=True)
            raise

    def send(self, peer: int, message: bytes) -> None:
        """Returns at once; the message is on its way while the training goes on."""
        self._out[peer].send_multipart([self._numbered(peer, _MESSAGE), message], copy=False)

    def send_early(self, peer: int, message: bytes) -> None:
        """A short message that overtakes others, where there are two ways; returns at once."""
        self._fast[peer].send_multipart([_EARLY, message])

    def early(self, peer: int) -> list[bytes]:
        """What has come of such messages of a peer. Does not wait."""
        self._look(0)
        box, self._early[peer] = self._early[peer], deque()
        return list(box)

    def receive(self, peer: int) -> memoryview:
        """The next message of a peer. Waits.

        Raises:
            RuntimeError: none came in time, or the peer is gone.
        """
        kind, message = self._next(peer)
        if kind != _MESSAGE:
            raise RuntimeError(f"rank {peer} has ended its part of the run")
        return memoryview(message)

    def arrived(self, peer: int) -> bool:
        """Whether a message of a peer lies here. Does not wait."""
        if not self._boxes[peer]:
            self._look(0)
        return bool(self._boxes[peer]) and self._boxes[peer][0][0] == _MESSAGE

    def close(self, failed: bool) -> None:
        """Let go of the sockets, when all peers are through or something has failed."""
        try:
            if not failed:
                self._all_say(_BYE)
        finally:
            for peer, out in self._out.items():
                out.disable_monitor()
                self._monitors[peer].close()
                out.close()
            for fast in self._fast.values():
                fast.close()
            self._in.close()
            self._guard.close()
            self._context.destroy()

    # ---------------------------------------------------------------- sockets
    def _listen(self, public: bytes, secret: bytes, meeting: str | None, most_bytes: int) -> str:
        self._in.curve_publickey, self._in.curve_secretkey = public, secret
        self._in.curve_server, self._in.zap_domain = True, _DOMAIN
        self._in.setsockopt(zmq.RCVHWM, 0)
        self._in.setsockopt(zmq.MAXMSGSIZE, most_bytes + 1024)  # with what encryption adds
        self._in.setsockopt(zmq.HANDSHAKE_IVL, int(1e3 * self._timeout_s))
        target = f"tcp://{'127.0.0.1' if meeting is None else own_address(meeting)}"
        return f"{target}:{self._in.bind_to_random_port(target)}"

    def _connect(self, said: dict[str, str], public: bytes, secret: bytes) -> Any:
        out = self._context.socket(zmq.PUSH)
        out.curve_publickey, out.curve_secretkey, out.curve_serverkey = public, secret, said["key"].encode()
        out.setsockopt(zmq.SNDHWM, 0)  # no worker is ahead of another by more than the policy lets it
        out.connect(said["at"])
        return out

    def _admit(self) -> None:
        """Answer ZeroMQ's question whether a key may come in (ZAP, https://rfc.zeromq.org/spec/27/)."""
        _, request, domain, _, _, mechanism, *credentials = self._guard.recv_multipart()
        rank = self._known.get(credentials[0]) if credentials else None
        known = rank is not None and (domain, mechanism) == (_DOMAIN, b"CURVE")
        status, text = (b"200", b"") if known else (b"400", b"not a key of this run")
        self._guard.send_multipart([b"1.0", request, status, text, b"" if rank is None else b"%d" % rank, b""])

    # ---------------------------------------------------------------- messages
    def _all_say(self, word: bytes) -> None:
        """Say it to all peers, and wait until all have said it."""
        for peer, out in self._out.items():
            if peer not in self._gone:
                out.send_multipart([self._numbered(peer, word), b""])
        for peer in self._out:
            while self._next(peer)[0] != word:
                pass

    def _numbered(self, peer: int, kind: bytes) -> bytes:
        self._sent[peer] += 1
        return kind + self._sent[peer].to_bytes(8, "little")

    def _next(self, peer: int) -> tuple[bytes, Any]:
        box, limit_s = self._boxes[peer], time.monotonic() + self._timeout_s
        while not box:
            self._look()
            now_s = time.monotonic()
            if peer in self._gone and not box:
                limit_s = min(limit_s, now_s + _GRACE_S)
            if peer in self._broken and not box:
                raise RuntimeError(self._broken[peer])
            if self.patient is not None and peer not in self._gone:
                if not self.patient():
                    raise RuntimeError(f"rank {self._rank} waits for rank {peer} no more")
                limit_s = now_s + self._timeout_s
            if now_s >= limit_s and not box:
                gone = "its connection is closed" if peer in self._gone else f"within {self._timeout_s:g} s"
                raise RuntimeError(f"no message from rank {peer} has come to rank {self._rank}: {gone}")
        kind, message = box.popleft()
        return kind, message

    def _look(self, within_ms: int = _LOOK_MS) -> None:
        ready = dict(self._poller.poll(within_ms))
        if self._guard in ready:
            self._admit()
        while self._in in ready:
            try:
                frames = self._in.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                break
            peer = int(frames[0].get("User-Id"))
            if peer not in self._boxes or len(frames) != 2:
                continue
            if frames[0].bytes == _EARLY:
                if peer in self._early:
                    self._early[peer].append(frames[1].bytes)
            else:
                self._take(peer, frames[0].bytes, frames[1].buffer)
        for peer, monitor in self._monitors.items():
            if monitor in ready:
                recv_monitor_message(monitor)
                self._gone.add(peer)

    def _take(self, peer: int, head: bytes, message: Any) -> None:
        """What has come of a peer; nothing any more once one of its messages is missing."""
        number, expected = int.from_bytes(head[1:], "little"), self._heard[peer] + 1
        if number == expected:
            self._heard[peer] = number
            self._boxes[peer].append((head[:1], message))
        elif peer not in self._broken:
            self._broken[peer] = (
                f"message {expected} from rank {peer} to rank {self._rank} is lost, and number {number} has come: the "
                f"connection between them was closed and made anew"
            )


def own_address(meeting: str) -> str:
    """This machine's address on the way to another one, or to itself; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((meeting, 9))
        address: str = probe.getsockname()[0]
        return address
