"""The parameter server keeps its contract with shards inside the process, and behind real encrypted sockets."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.parameter_server import SHARDS, ParameterServerContract, ShardPlace, Stored
from support.shards import LocalLine, LocalShards
from uneven.runtime.parameter_server import Patience, ShardHost, ZmqLine, make_keys

PATIENCE = Patience(join_s=60.0, silence_s=30.0)


class Sockets:
    """Shards in threads: on the loopback, encrypted, or (``local``) met in their directory."""

    def __init__(self, directory: Path, members: int, *, local: bool) -> None:
        self._directory, self._members, self._local = directory, members, local
        make_keys(directory)
        self._hosts: dict[int, ShardHost] = {}
        for shard in range(SHARDS):
            self.start(shard)

    def line(self, rank: int) -> ZmqLine:
        return ZmqLine(self._directory, SHARDS, beat_s=0.05, refresh_s=0.5, local=self._local)

    def start(self, shard: int) -> None:
        self._hosts[shard] = ShardHost(self._directory, shard, self._members, patience=PATIENCE)
        assert not self._local or (self._directory / f"shard-{shard}.socket").is_socket()

    def kill(self, shard: int) -> None:
        self._hosts[shard].close()

    def stored(self, shard: int) -> Stored:
        return Stored.of(self._hosts[shard].shard)

    def close(self) -> None:
        for host in self._hosts.values():
            host.close()


class TestLocal(ParameterServerContract):
    def place(self, members: int) -> ShardPlace:
        return LocalShards(SHARDS, members, patience=PATIENCE)


class TestSockets(ParameterServerContract):
    local = False

    @pytest.fixture(autouse=True)
    def _directory(self, tmp_path: Path) -> None:
        self.directory = tmp_path / "server"

    def place(self, members: int) -> ShardPlace:
        return Sockets(self.directory, members, local=self.local)


class TestSocketsOfOneMachine(TestSockets):
    local = True

    @pytest.fixture(autouse=True)
    def _directory(self) -> Iterator[None]:
        with tempfile.TemporaryDirectory(prefix="u-") as folder:  # a path that is short enough for a socket
            self.directory = Path(folder) / "server"
            yield


def test_a_local_line_says_where_it_leads() -> None:
    shards = LocalShards(2, 1)
    assert LocalLine(shards, 0).where(1) == "inside this process, 2 of 2"
    shards.close()
