"""Whoever has no key of the run can neither read nor write, and a shard goes on whatever is sent to it."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq

from support.parameter_server import Stored
from uneven.errors import ConfigError, PeerError
from uneven.runtime.messages.keys import CLIENT_KEY, SERVER_KEY, client_keys, publish
from uneven.runtime.parameter_server import Client, Patience, ShardHost, ZmqLine, make_keys, table_of
from uneven.runtime.parameter_server.pure.wire import Kind, Message, encode
from uneven_bench.server.fuzz import malformed

MARK = b"sixteen bytes..!"
TABLE = table_of([(64,)], "float32", 1)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    make_keys(tmp_path / "server")
    return tmp_path / "server"


@pytest.fixture
def shard(directory: Path) -> Iterator[ShardHost]:
    with ShardHost(directory, 0, 1) as host:
        yield host


def marked() -> list[Any]:
    return [np.frombuffer(MARK * 16, np.float32).copy()]


def client(directory: Path, *, local: bool = False) -> Client:
    line = ZmqLine(directory, 1, beat_s=0.05, refresh_s=0.3, local=local)
    return Client(0, TABLE, marked(), line, timeout_s=10.0)


@contextlib.contextmanager
def dealer(address: str, public: str = "", secret: str = "", other: str = "") -> Iterator[Any]:
    """A socket to the shard, with keys if any are given."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as one:
        one.linger = 0
        if public:
            one.curve_publickey, one.curve_secretkey = public.encode(), secret.encode()
            one.curve_serverkey = other.encode()
        one.connect(address)
        yield one


@pytest.mark.parametrize("who", ["without keys", "with keys of its own", "with the shard's public key"])
def test_a_stranger_gets_nothing_and_changes_nothing(directory: Path, shard: ShardHost, who: str) -> None:
    one = client(directory)
    one.pull().result()
    before = Stored.of(shard.shard)
    keys: tuple[str, ...] = ()
    if who != "without keys":
        other = (
            client_keys(directory).other if who == "with the shard's public key" else zmq.curve_keypair()[0].decode()
        )
        keys = (*(key.decode() for key in zmq.curve_keypair()), other)
    with dealer(shard.endpoint, *keys) as stranger:
        for kind in (Kind.HELLO, Kind.PUSH, Kind.PULL, Kind.PING, Kind.LEAVE):
            vector = (marked()[0],) if kind is Kind.PUSH else ()
            size = {"table": TABLE.fingerprint, "elements": 64}
            stranger.send_multipart(encode(Message(kind=kind, number=9, sequence=1, value=1.0, vector=vector, **size)))
        while not Stored.of(shard.shard).counts.get("strangers"):
            time.sleep(0.01)
        assert not stranger.poll(50)
    after = Stored.of(shard.shard)
    one.close()
    assert (after.vector is before.vector, after.version) == (True, before.version)


@contextlib.contextmanager
def between(directory: Path, shard: ShardHost, hear: Callable[[bytes, bool], object]) -> Iterator[None]:
    """A worker reaches the shard through one who hears what is said, and whether by the shard, and passes it on."""
    door = socket.create_server(("127.0.0.1", 0))
    ended = threading.Event()

    def relay(source: socket.socket, target: socket.socket, shards: bool) -> None:
        with contextlib.suppress(ConnectionError):  # the worker or the shard has closed its end
            while not ended.is_set():
                # No time-out of the socket: the other way sends by it, which takes long on a busy machine.
                if not select.select([source], [], [], 0.05)[0]:
                    continue
                data = source.recv(65536)
                if not data:
                    return
                hear(data, shards)
                target.sendall(data)

    def stand() -> None:
        one, _ = door.accept()
        host, port = shard.endpoint.removeprefix("tcp://").split(":")
        with one, socket.create_connection((host, int(port))) as other:
            ways = ((one, other, False), (other, one, True))
            threads = [threading.Thread(target=relay, args=way) for way in ways]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    who = threading.Thread(target=stand)
    who.start()
    publish(directory, 0, f"tcp://127.0.0.1:{door.getsockname()[1]}")
    try:
        yield
    finally:
        ended.set()
        who.join()
        door.close()


def test_a_listener_reads_nothing(directory: Path, shard: ShardHost) -> None:
    heard = bytearray()
    with between(directory, shard, lambda data, _: heard.extend(data)):
        worker = client(directory)
        into = [np.zeros(64, np.float32)]
        worker.pull().into(into)
        assert into[0].tobytes() == MARK * 16
        worker.close()
    assert len(heard) > 1000
    assert MARK not in heard


def test_a_shard_ends_though_a_worker_takes_nothing(directory: Path, shard: ShardHost) -> None:
    """ZeroMQ would keep a reply for ever for a worker that is there and does not read on."""
    taken, stuck, over = [0], threading.Event(), threading.Event()

    def hear(data: bytes, shards: bool) -> None:
        taken[0] += len(data) if shards else 0
        if taken[0] > 1_000_000:
            stuck.set()
            over.wait()

    copy = [np.ones(4_000_000, np.float32)]  # 16 MB, more than fits the buffers on the way
    with between(directory, shard, hear):
        line = ZmqLine(directory, 1, refresh_s=60.0, local=False)
        worker = Client(0, table_of([(4_000_000,)], "float32", 1), copy, line, timeout_s=30.0)
        worker.pull()
        stuck.wait()
        ending = threading.Thread(target=shard.close)
        ending.start()
        ending.join(30.0)
        ended = not ending.is_alive()
        over.set()
        ending.join()
        worker.close()
    assert ended


def test_a_shard_outlives_what_a_member_may_send(directory: Path, shard: ShardHost) -> None:
    keys = client_keys(directory)
    with dealer(shard.endpoint, keys.public, keys.secret, keys.other) as member:
        for frames in malformed(3, 500):
            member.send_multipart(frames or [b""])
        while sum(Stored.of(shard.shard).counts.values()) < 480:  # the rest is of another life, and asked who it is
            time.sleep(0.01)
        one = client(directory)
        one.push(0, marked()).result()
        one.close()
    assert Stored.of(shard.shard).counts["applied"] == 1


def test_keys_are_for_their_owner_alone_and_for_one_run(directory: Path) -> None:
    for name in (SERVER_KEY, CLIENT_KEY):
        assert stat.S_IMODE((directory / name).stat().st_mode) == 0o600
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    with pytest.raises(ConfigError, match="exists: use a new directory"):
        make_keys(directory)
    (directory / CLIENT_KEY).chmod(0o640)
    with pytest.raises(ConfigError, match=r"others can read .*client\.key: run chmod go="):
        ZmqLine(directory, 1)


def test_a_directory_that_others_can_enter_is_refused(directory: Path) -> None:
    directory.chmod(0o711)
    with pytest.raises(ConfigError, match=r"others can read .*server: run chmod go="):
        ShardHost(directory, 0, 1)


def test_on_its_own_machine_a_shard_is_met_in_the_directory_and_else_by_its_address(
    directory: Path, shard: ShardHost
) -> None:
    near = directory / "shard-0.socket"
    assert near.is_socket()
    one = client(directory, local=True)
    one.pull().result()
    publish(directory, 0, shard.endpoint, f"ipc://{near}.gone")  # nobody listens there
    other = client(directory, local=True)
    other.pull().result()
    one.close()
    other.close()


def test_a_shard_that_is_not_there_is_named(directory: Path) -> None:
    one = Client(0, TABLE, marked(), ZmqLine(directory, 1, beat_s=0.05), timeout_s=0.1)
    with pytest.raises(PeerError, match=r"no answer to pull of clock 0 within 0\.1 s from shard 0 \(no address in"):
        one.pull().result()
    publish(directory, 0, "tcp://127.0.0.1:9")
    for asked in (lambda: one.push(0, marked()), one.pull):
        with pytest.raises(PeerError, match=r"from shard 0 \(tcp://127\.0\.0\.1:9\)"):
            asked().result()
        (directory / "shard-0.address").unlink(missing_ok=True)  # as when rank 0 ends, which has made the directory
    one.close()


def test_arrays_of_another_table_and_scales_out_of_range_are_refused(directory: Path) -> None:
    one = Client(0, TABLE, marked(), ZmqLine(directory, 1))
    with pytest.raises(ConfigError, match=r"not .*65 of float32"):
        one.push(0, [np.zeros(65, np.float32)])
    for wrong in (lambda: one.push(0, marked(), scale=0.0), lambda: one.push_pull(0, marked(), scale=-1.0)):
        with pytest.raises(ConfigError, match="give a number above 0"):
            wrong()
    with pytest.raises(ConfigError, match=r"alpha=1\.5"):
        one.exchange(0, marked(), alpha=1.5)
    one.close()
    with pytest.raises(ConfigError, match="for 1 shards, but a connection to 2"):
        Client(0, TABLE, marked(), ZmqLine(directory, 2))


def test_keys_that_are_missing_or_damaged_are_named(directory: Path) -> None:
    with pytest.raises(ConfigError, match=r"server\.key does not exist: make keys"):
        ShardHost(directory / "elsewhere", 0, 1)
    (directory / CLIENT_KEY).write_text(json.dumps({"public": "x"}))
    with pytest.raises(ConfigError, match=r"client\.key has no valid keys"):
        ZmqLine(directory, 1)


def test_a_shard_listens_on_the_loopback_unless_told_otherwise(directory: Path, shard: ShardHost) -> None:
    assert shard.endpoint.startswith("tcp://127.0.0.1:")
    with pytest.raises(ConfigError, match=r"cannot listen at 'tcp://203\.0\.113\.9'"):
        ShardHost(directory, 1, 1, bind="tcp://203.0.113.9")


def test_a_worker_that_dies_is_not_waited_for(directory: Path) -> None:
    table = table_of([(64,)], "float32", 1)
    with ShardHost(directory, 0, 2, patience=Patience(silence_s=0.4)) as host:
        both = [Client(rank, table, marked(), ZmqLine(directory, 1, beat_s=0.05)) for rank in range(2)]
        both[1].push(0, marked()).result()
        both[1].close(leave=False)
        both[0].push(4, marked(), scale=1e-3)
        assert both[0].pull(5).result().version == 2
        assert Stored.of(host.shard).counts["left"] >= 1  # on a busy machine the other may seem to be silent too
        both[0].close()
