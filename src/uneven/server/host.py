"""A shard on a ZeroMQ socket: in a thread (``ShardHost``) or in a process of its own (``python -m uneven.server``)."""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import zmq
from zmq.utils import z85
from zmq.utils.monitor import recv_monitor_message

from uneven.errors import ConfigError, PeerError
from uneven.server.keys import Keys, address, local_target, publish, server_keys
from uneven.server.known import Patience
from uneven.server.shard import Shard
from uneven.server.wire import PIECE_BYTES, Message, Vector, encode

LOOPBACK = "tcp://127.0.0.1"
_DOMAIN = b"uneven"
_TICK_S = 0.05
_QUEUE = 64
"""Messages that may wait for one worker. Lost replies are asked for again."""

_LINGER_MS = 1000
"""How long replies are kept for a worker that does not take them. Neither 0 nor for ever, which is the default: libzmq
4.3.5 aborts the process where it drops the rest of a reply in the moment in which the worker goes (``clean_pipes`` in
session_base.cpp), and a connection that broke with replies in it keeps the end waiting, for ever."""


class Stored(NamedTuple):
    """The state of a shard, for tests and people: nothing in it changes any more."""

    version: int
    vector: Vector
    least_clock: int
    counts: dict[str, int]


class ShardHost:
    """A shard in a thread of this process.

    Args:
        directory: that of :func:`uneven.server.keys.make_keys`; the shard's address is put there.
        shard: number of this shard, from 0.
        members: number of workers.
        bind: where to listen; the loopback unless told otherwise, as ``tcp://ADDRESS`` that the workers can reach.

    Raises:
        ConfigError: there are no keys, others may read them, or ``bind`` is no address of this machine.
    """

    def __init__(
        self,
        directory: Path,
        shard: int,
        members: int,
        *,
        bind: str = LOOPBACK,
        patience: Patience | None = None,
    ) -> None:
        self._server = _Server(directory, shard, members, bind, patience or Patience())
        self._ended = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=f"uneven-shard-{shard}", daemon=True)
        self._thread.start()

    @property
    def endpoint(self) -> str:
        """Where it listens."""
        return self._server.endpoint

    def stored(self) -> Stored:
        """Its state now. The vector is the shard's own and never changed in place."""
        shard = self._server.shard
        return Stored(shard.version, shard.vector, shard.least_clock, dict(shard.counts))

    def here(self, rank: int) -> bool | None:
        """Whether a worker has been heard lately; None before it has come at all."""
        return self._server.shard.here(rank)

    def close(self) -> None:
        """End it; what it holds is gone. Calling it twice is fine.

        Raises:
            PeerError: it had ended by itself before, with an error.
        """
        self._ended.set()
        self._thread.join()
        if self._error is not None:
            error, self._error = self._error, None
            raise PeerError(f"the shard at {self.endpoint} has ended: {error}") from error

    def __enter__(self) -> ShardHost:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    def _run(self) -> None:
        try:
            self._server.serve(self._ended.is_set)
        except (zmq.ZMQError, OSError, ValueError, RuntimeError) as error:
            self._error = error
        finally:
            self._server.close()


def serve(directory: Path, shard: int, members: int, bind: str, patience: Patience, ended: Callable[[], bool]) -> None:
    """Be a shard until ``ended`` says so. Arguments and errors as of :class:`ShardHost`."""
    server = _Server(directory, shard, members, bind, patience)
    try:
        server.serve(ended)
    finally:
        server.close()


class _Server:
    """The sockets of one shard; used by one thread."""

    def __init__(self, directory: Path, shard: int, members: int, bind: str, patience: Patience) -> None:
        keys = server_keys(directory)
        self.shard = Shard(secrets.randbits(63) | 1, members, patience)
        self._worker_key = z85.decode(keys.other)
        self._routes: dict[int, tuple[Any, bytes]] = {}
        self._context = zmq.Context()
        self._context.setsockopt(zmq.LINGER, _LINGER_MS)  # before there is a socket: connections take it from theirs
        self._guard = self._context.socket(zmq.REP)
        self._guard.bind("inproc://zeromq.zap.01")
        self._socket, self._near = (self._router() for _ in range(2))
        self._monitor: Any = None
        before, local = address(directory, shard), local_target(directory, shard)
        try:
            self._secure(keys)
            self.endpoint = _bind(self._socket, bind, None if before is None else before.remote)
            if local is not None:
                self._near.bind(local)
        except BaseException:
            self.close()
            raise
        publish(directory, shard, self.endpoint, local)

    def _router(self) -> Any:
        socket = self._context.socket(zmq.ROUTER)
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        socket.setsockopt(zmq.SNDHWM, _QUEUE)
        socket.setsockopt(zmq.RCVHWM, _QUEUE)
        socket.setsockopt(zmq.MAXMSGSIZE, 2 * PIECE_BYTES)  # of a frame, with what encryption adds
        socket.setsockopt(zmq.HANDSHAKE_IVL, 5_000)
        return socket

    def _secure(self, keys: Keys) -> None:
        keys.serve(self._socket, _DOMAIN)
        refused = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
        self._monitor = self._socket.get_monitor_socket(refused | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL)

    def serve(self, ended: Callable[[], bool]) -> None:
        """Answer, until ``ended``."""
        poller = zmq.Poller()
        for socket in (self._socket, self._near, self._guard, self._monitor):
            poller.register(socket, zmq.POLLIN)
        next_tick_s = 0.0
        while not ended():
            ready = dict(poller.poll(int(1e3 * _TICK_S)))
            if self._guard in ready:
                self._admit()
            if self._monitor in ready:
                recv_monitor_message(self._monitor)
                self.shard.counts["strangers"] += 1
            for socket in (self._socket, self._near):
                if socket in ready:
                    self._take(socket)
            if time.monotonic() >= next_tick_s:
                next_tick_s = time.monotonic() + _TICK_S
                self._send(self.shard.tick(time.monotonic()))

    def close(self) -> None:
        """Let go of the sockets."""
        if self._monitor is not None:
            self._socket.disable_monitor()
        for socket in (self._guard, self._socket, self._near):
            socket.close()
        self._context.destroy()

    def _admit(self) -> None:
        """Answer ZeroMQ's question whether a key may come in (ZAP, https://rfc.zeromq.org/spec/27/)."""
        version, request, domain, _, _, mechanism, *credentials = self._guard.recv_multipart()
        known = (version, domain, mechanism, credentials) == (b"1.0", _DOMAIN, b"CURVE", [self._worker_key])
        status, text = (b"200", b"") if known else (b"400", b"not a key of this run")
        self._guard.send_multipart([b"1.0", request, status, text, b"", b""])

    def _take(self, socket: Any) -> None:
        route, *frames = socket.recv_multipart(copy=False)
        rank, replies = self.shard.take([frame.buffer for frame in frames], time.monotonic())
        if rank is not None:
            self._routes[rank] = socket, route.bytes
        self._send(replies)

    def _send(self, replies: Iterable[Message]) -> None:
        for reply in replies:
            if reply.rank not in self._routes:
                continue
            socket, route = self._routes[reply.rank]
            try:
                socket.send_multipart([route, *encode(reply)], zmq.NOBLOCK, copy=False)
            except zmq.ZMQError as error:
                if error.errno not in (zmq.EAGAIN, zmq.EHOSTUNREACH):
                    raise
                self.shard.counts["unsent"] += 1  # it is gone, or reads too slowly, and asks again when it is back


def _bind(socket: Any, target: str, before: str | None) -> str:
    """Bind to the address of an earlier life if it was there and is free, else to any free port of ``target``."""
    if before is not None and before.rpartition(":")[0] == target:
        with contextlib.suppress(zmq.error.ZMQBindError, zmq.ZMQError):
            socket.bind(before)
            return before
    try:
        port = socket.bind_to_random_port(target)
    except zmq.ZMQError as error:
        raise ConfigError(f"cannot listen at {target!r}: {error}; name tcp://ADDRESS of this machine") from error
    return f"{target}:{port}"
