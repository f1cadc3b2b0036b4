"""The sockets of one shard: encrypted for other machines, protected by file permissions on this one.

This module has keys, addresses and the wait for messages; an :class:`Answering` decides the answers.
"""

import contextlib
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol, Self

import zmq
from zmq.utils import z85
from zmq.utils.monitor import recv_monitor_message

from uneven.errors import ConfigError, PeerError
from uneven.runtime.messages.keys import Keys, address, local_target, publish, server_keys

LOOPBACK = "tcp://127.0.0.1"
_DOMAIN = b"uneven"
_TICK_S = 0.05
_LATE_S = 1.0  # a tick that is later than this is put off
_CATCHES_UP_S = 2.0  # by this time, in which each worker sends four heartbeats
FRAME_BYTES = 8 << 20  # the largest frame: twice a piece of either protocol, because encryption adds overhead
_QUEUE = 64  # the messages that may wait for one worker. It asks again for lost replies.

_LINGER_MS = 1000
"""The time for which replies are kept for a worker that does not take them. 0 and infinity (the default) do not work:
libzmq 4.3.5 aborts the process if it drops the rest of a reply while the worker leaves (``clean_pipes`` in
session_base.cpp), and a broken connection with replies in it blocks the end forever."""


class Answering(Protocol):
    """The decisions of a shard, called from one thread."""

    counts: Counter[str]  # of events, for reports

    @property
    def busy(self) -> bool:  # it has background work, so the loop must not wait for messages
        ...

    def take(self, frames: Sequence[Any], now_s: float) -> tuple[int | None, Sequence[Any]]:
        """Answer one message: return its sender, None if unknown, and messages, each with its ``rank``."""

    def tick(self, now_s: float) -> Sequence[Any]:
        """Return messages due by time. Called a few times per second, and immediately again while busy."""


class Posts(Protocol):
    """Messages that come by another way, from processes on this machine that also have a socket."""

    fd: int  # readable when there are some

    def taken(self) -> list[list[bytes]]:
        """Return the frames of the next messages, in their order, or none."""
        ...


class ShardSockets:
    """The sockets of one shard; used by one thread.

    Args:
        directory: that of :func:`uneven.runtime.messages.keys.make_keys`; the shard writes its address there.
        number: of this shard, from 0.
        bind: address to listen on, with a port or without.
        posts: another way of messages. One that was posted before another was sent by a socket is taken before it.

    Raises:
        ConfigError: no keys, keys that others may read, or ``bind`` is not an address of this machine.
    """

    def __init__(
        self,
        directory: Path,
        number: int,
        bind: str,
        shard: Answering,
        encode: Callable[[Any], list[Any]],
        posts: Posts | None = None,
    ) -> None:
        keys = server_keys(directory)
        self.shard = shard
        self._encode = encode
        self._posts = posts
        self._worker_key = z85.decode(keys.other)
        self._routes: dict[int, tuple[Any, bytes]] = {}
        self._context = zmq.Context()
        self._context.setsockopt(zmq.LINGER, _LINGER_MS)  # before the sockets, which take it from the context
        self._guard = self._context.socket(zmq.REP)
        self._guard.bind("inproc://zeromq.zap.01")
        self._socket, self._near = (self._router() for _ in range(2))
        self._monitor: Any = None
        before = address(directory, number)
        local = local_target(directory, number)
        try:
            self._secure(keys)
            self.endpoint = _bind(self._socket, bind, None if before is None else before.remote)
            if local is not None:
                self._near.bind(local)
        except BaseException:
            self.close()
            raise
        publish(directory, number, self.endpoint, local)

    def _router(self) -> Any:
        socket = self._context.socket(zmq.ROUTER)
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        socket.setsockopt(zmq.SNDHWM, _QUEUE)
        socket.setsockopt(zmq.RCVHWM, _QUEUE)
        socket.setsockopt(zmq.MAXMSGSIZE, FRAME_BYTES)
        socket.setsockopt(zmq.HANDSHAKE_IVL, 5_000)
        return socket

    def _secure(self, keys: Keys) -> None:
        keys.serve(self._socket, _DOMAIN)
        refused = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
        self._monitor = self._socket.get_monitor_socket(refused | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL)

    def serve(self, ended: Callable[[], bool]) -> None:
        poller = zmq.Poller()
        for socket in (self._socket, self._near, self._guard, self._monitor):
            poller.register(socket, zmq.POLLIN)
        if self._posts is not None:
            poller.register(self._posts.fd, zmq.POLLIN)
        next_tick_s, late_s = 0.0, math.inf
        while not ended():
            ready = dict(poller.poll(0 if self.shard.busy else int(1e3 * _TICK_S)))
            if self._guard in ready:
                self._admit()
            if self._monitor in ready:
                recv_monitor_message(self._monitor)
                self.shard.counts["strangers"] += 1
            for socket in (self._socket, self._near):
                if socket in ready:
                    self._take(socket)
            self._take_posts()
            now_s = time.monotonic()
            if now_s > next_tick_s + late_s:
                # This process was stopped, so messages of live workers wait in the sockets. At most once in a row:
                # otherwise a slow shard would never tick.
                next_tick_s, late_s = now_s + _CATCHES_UP_S, math.inf
            elif now_s >= next_tick_s or (self.shard.busy and late_s < math.inf):
                self._send(self.shard.tick(now_s))
                next_tick_s, late_s = time.monotonic() + _TICK_S, _LATE_S

    def close(self) -> None:
        if self._monitor is not None:
            self._socket.disable_monitor()
        for socket in (self._guard, self._socket, self._near):
            socket.close()
        self._context.destroy()

    def _admit(self) -> None:
        """Answer ZeroMQ's question whether to admit a key (ZAP, https://rfc.zeromq.org/spec/27/)."""
        version, request, domain, _, _, mechanism, *credentials = self._guard.recv_multipart()
        known = (version, domain, mechanism, credentials) == (b"1.0", _DOMAIN, b"CURVE", [self._worker_key])
        status, text = (b"200", b"") if known else (b"400", b"not a key of this run")
        self._guard.send_multipart([b"1.0", request, status, text, b"", b""])

    def _take(self, socket: Any) -> None:
        route, *frames = socket.recv_multipart(copy=False)
        self._take_posts()
        rank, replies = self.shard.take([frame.buffer for frame in frames], time.monotonic())
        if rank is not None:
            self._routes[rank] = socket, route.bytes
        self._send(replies)

    def _take_posts(self) -> None:
        for frames in () if self._posts is None else self._posts.taken():
            self._send(self.shard.take(frames, time.monotonic())[1])

    def _send(self, replies: Iterable[Any]) -> None:
        for reply in replies:
            if reply.rank in self._routes:
                socket, route = self._routes[reply.rank]
                self._reply(socket, [route, *self._encode(reply)])

    def _reply(self, socket: Any, frames: list[Any]) -> None:
        try:
            socket.send_multipart(frames, zmq.NOBLOCK, copy=False)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EAGAIN, zmq.EHOSTUNREACH):
                raise
            self.shard.counts["unsent"] += 1  # it has failed, or reads too slowly, and asks again later


class ShardThread:
    """A shard in a thread of this process."""

    def __init__(self, sockets: ShardSockets, name: str) -> None:
        self._server = sockets
        self._ended = threading.Event()
        self._error: BaseException | None = None
        self.failed: Callable[[BaseException], object] = lambda error: None  # called if it ends with an error
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def endpoint(self) -> str:
        return self._server.endpoint

    def close(self) -> None:
        """End the shard and drop its state. Idempotent. Raises PeerError if it had ended before with an error."""
        self._ended.set()
        self._thread.join()
        if self._error is not None:
            error, self._error = self._error, None
            raise PeerError(f"the shard at {self.endpoint} has ended: {error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        try:
            self._server.serve(self._ended.is_set)
        except BaseException as error:
            self._error = error
            self.failed(error)
            raise
        finally:
            self._server.close()


def _bind(socket: Any, target: str, before: str | None) -> str:
    """Bind to the address of an earlier life if possible, otherwise to the port of ``target``, or to any free one."""
    if before is not None and before.rpartition(":")[0] == target:
        with contextlib.suppress(zmq.error.ZMQBindError, zmq.ZMQError):
            socket.bind(before)
            return before
    try:
        if target.rpartition(":")[2].isdecimal():
            socket.bind(target)
            return target
        port = socket.bind_to_random_port(target)
    except zmq.ZMQError as error:
        raise ConfigError(f"cannot listen at {target!r}: {error}; name tcp://ADDRESS of this machine") from error
    return f"{target}:{port}"
