"""Messages of any length between workers: in order, encrypted, over ZeroMQ.

Every worker has its own key pair for the run. Workers exchange the public keys over the line on which they compare
settings. A socket accepts only these keys, and the key, not the content, identifies a message's sender.
"""

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
_LINGER_MS = 1000  # see uneven.runtime.parameter_server.shard_host
_LOOK_MS = 50
_SILENT_S = 900  # until a silent machine counts as gone; Linux resends unconfirmed data for about as long
_GRACE_S = 0.3  # for messages still in the socket after its connection was closed
_HELLO, _MESSAGE, _BYE, _EARLY = b"\0", b"\1", b"\2", b"\3"


class PeerMessages:
    """One worker's end. All workers of a run create theirs at the same time, also those without peers.

    Args:
        texts: gathers a text from every rank.
        meeting: an address that determines the interface to listen on; None if all workers are on one machine.
        two_ways: whether a second connection to each peer lets short messages overtake others.

    Attributes:
        patient: whether to continue a wait; None if ``timeout_s`` ends it.
    """

    def __init__(
        self,
        rank: int,
        peers: Sequence[int],
        texts: Callable[[str], Sequence[str]],
        *,
        meeting: str | None,
        most_bytes: int,
        timeout_s: float,
        two_ways: bool = False,
    ) -> None:
        self._rank = rank
        self._timeout_s = timeout_s
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
        self._sent = dict.fromkeys(peers, 0)  # number of the last message to each peer
        self._heard = dict.fromkeys(peers, 0)  # number of the last message from each peer
        self._broken: dict[int, str] = {}  # peers with a lost message, and the error
        self._gone: set[int] = set()  # peers whose connection was closed
        self._poller = zmq.Poller()
        for one in (self._in, self._guard, *self._monitors.values()):
            self._poller.register(one, zmq.POLLIN)
        try:
            self._all_say(_HELLO)
        except BaseException:
            self.close(failed=True)
            raise

    def send(self, peer: int, message: bytes) -> None:
        """Send a message in the background."""
        self._out[peer].send_multipart([self._numbered(peer, _MESSAGE), message], copy=False)

    def send_early(self, peer: int, message: bytes) -> None:
        """Send a short message that overtakes others, with ``two_ways`` only; does not wait."""
        self._fast[peer].send_multipart([_EARLY, message])

    def early(self, peer: int) -> list[bytes]:
        """Return the overtaking messages from a peer that are here; does not wait."""
        self._look(0)
        box, self._early[peer] = self._early[peer], deque()
        return list(box)

    def receive(self, peer: int) -> memoryview:
        """Wait for the next message of a peer; raises :class:`RuntimeError` if none came in time or the peer has
        failed."""
        kind, message = self._next(peer)
        if kind != _MESSAGE:
            raise RuntimeError(f"rank {peer} has ended its part of the run")
        return memoryview(message)

    def arrived(self, peer: int) -> bool:
        """Return whether a message of a peer is here; does not wait."""
        if not self._boxes[peer]:
            self._look(0)
        return bool(self._boxes[peer]) and self._boxes[peer][0][0] == _MESSAGE

    def close(self, failed: bool) -> None:
        """Close the sockets when all peers have ended, or immediately if something has failed."""
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

    def _listen(self, public: bytes, secret: bytes, meeting: str | None, most_bytes: int) -> str:
        self._in.curve_publickey, self._in.curve_secretkey = public, secret
        self._in.curve_server, self._in.zap_domain = True, _DOMAIN
        self._in.setsockopt(zmq.RCVHWM, 0)
        self._in.setsockopt(zmq.MAXMSGSIZE, most_bytes + 1024)  # room for encryption
        self._in.setsockopt(zmq.HANDSHAKE_IVL, int(1e3 * self._timeout_s))
        target = f"tcp://{'127.0.0.1' if meeting is None else own_address(meeting)}"
        return f"{target}:{self._in.bind_to_random_port(target)}"

    def _connect(self, said: dict[str, str], public: bytes, secret: bytes) -> Any:
        out = self._context.socket(zmq.PUSH)
        out.curve_publickey, out.curve_secretkey, out.curve_serverkey = public, secret, said["key"].encode()
        out.setsockopt(zmq.SNDHWM, 0)  # unlimited: the policy bounds how far a worker leads another
        out.tcp_keepalive = out.tcp_keepalive_cnt = 1
        out.tcp_keepalive_idle = out.tcp_keepalive_intvl = _SILENT_S // 2
        out.connect(said["at"])
        return out

    def _admit(self) -> None:
        # ZeroMQ asks here whether a key may connect (ZAP, https://rfc.zeromq.org/spec/27/).
        _, request, domain, _, _, mechanism, *credentials = self._guard.recv_multipart()
        rank = self._known.get(credentials[0]) if credentials else None
        known = rank is not None and (domain, mechanism) == (_DOMAIN, b"CURVE")
        status, text = (b"200", b"") if known else (b"400", b"not a key of this run")
        self._guard.send_multipart([b"1.0", request, status, text, b"" if rank is None else b"%d" % rank, b""])

    def _all_say(self, word: bytes) -> None:
        """Send a control message to all peers, and wait for it from all of them."""
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
            if peer in self._gone and not box:  # its last messages may still be in the socket
                limit_s = min(limit_s, now_s + _GRACE_S)
            if peer in self._broken and not box:
                raise RuntimeError(self._broken[peer])
            if self.patient is not None and peer not in self._gone:
                if not self.patient():
                    raise RuntimeError(f"rank {self._rank} no longer waits for rank {peer}")
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
        # ZeroMQ reconnects silently after a connection was closed, and loses the messages on it. Their numbers show it.
        number, expected = int.from_bytes(head[1:], "little"), self._heard[peer] + 1
        if number == expected:
            self._heard[peer] = number
            self._boxes[peer].append((head[:1], message))
        elif peer not in self._broken:
            self._broken[peer] = (
                f"message {expected} from rank {peer} to rank {self._rank} is lost, and number {number} has come: "
                "their connection was closed and reopened"
            )


def own_address(meeting: str) -> str:
    """Return this machine's address on the route to another one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((meeting, 9))  # UDP: sends nothing, but selects the route
        address: str = probe.getsockname()[0]
        return address
