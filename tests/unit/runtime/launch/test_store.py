"""``uneven store``: what it refuses, and runs that have ended; tests/ranks/test_elastic_store.py trains with it."""

from __future__ import annotations

import socket
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from uneven.cli import main
from uneven.cli.run import members_of
from uneven.errors import ConfigError, LaunchError
from uneven.runtime.launch import Launch, elastic_workers, preflight, store_server
from uneven.runtime.launch.rendezvous import OneLauncher, keep_store
from uneven.runtime.membership_board import WORKERS, Board
from uneven.runtime.tcp_store import tcp_store


def refusal(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The complaint of the command line."""
    with pytest.raises(SystemExit) as ended:
        main(["store", *words])
    assert ended.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--elastic", "8:2"], "--elastic 8:2: the least number comes first, as in 2:8"),
        (["--elastic", "two"], "--elastic two: it must be a positive number"),
        (["--elastic", "1:2", "--silence", "nan"], "--silence nan: give seconds"),
        (["--elastic", "1:2", "--host", "203.0.113.1"], "Give an address of this machine with --host"),
    ],
)
def test_what_cannot_be_is_refused(words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert complaint in refusal([*words, "--port", "0"], capsys)


def test_a_port_in_use_is_named_with_the_way_out(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        said = refusal(["--elastic", "1:2", "--port", str(port)], capsys)
        assert f"127.0.0.1, port {port}: Address already in use" in said
        assert "a free port with --port" in said
        start = Launch(target=(str(tmp_path / "train.py"),), elastic="1:2", rdzv_endpoint=f"127.0.0.1:{port}")
        with pytest.raises(LaunchError, match=f"whose store is there need --join 127.0.0.1:{port}"):
            preflight.check(start)


def test_a_store_serves_one_run(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    kept, port = keep_store("127.0.0.1", 0)
    store_server.open_run(kept, 1, (1, 2), 10.0)
    Board(kept).write("over", "")
    with pytest.raises(LaunchError, match="the run has already finished"):
        elastic_workers._join(Launch(target=(str(tmp_path / "train.py"),), join=f"127.0.0.1:{port}"))


def test_the_loss_of_all_workers_is_its_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    kept, port = keep_store("127.0.0.1", 0)
    # on a port that no other test can take
    monkeypatch.setattr(store_server, "keep_store", lambda *given: (kept, port))
    board = Board(kept)
    board.count(WORKERS, 1)
    board.remove_member(0, "it was killed")
    with pytest.raises(LaunchError, match="all workers ended before the training did") as ended:
        store_server.keep("127.0.0.1", port, (1, 2), 10.0)
    assert ended.value.exit_code == 1


def test_servers_belong_to_the_launcher_that_keeps_the_store(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    start = Launch(target=(str(tmp_path / "train.py"),), nproc="2", join="127.0.0.1:29500")
    with pytest.raises(ConfigError, match="--servers 1 with --join"):
        members_of(start, servers=1)


def test_servers_keep_the_model_of_the_first_start(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    start = Launch(target=(str(tmp_path / "train.py"),), nproc="2", max_restarts=1)
    with pytest.raises(ConfigError, match=r"--servers 1 with --max-restarts 1: .* Leave --max-restarts out"):
        members_of(start, servers=1)
    assert members_of(start, tables=1) == members_of(replace(start, elastic="1:2"), servers=1) == 2


def test_a_restart_finds_no_keys_of_the_start_before() -> None:
    launcher = OneLauncher("127.0.0.1", 0, "run")
    for asked in (launcher, OneLauncher("127.0.0.1", keep_store("127.0.0.1", 0)[1], "run")):
        asked.next_rendezvous().store.set("here/0", "")
        found = asked.next_rendezvous()
        assert not found.store.check(["here/0"])
        there = found.bootstrap_store_info
        assert there is not None
        tcp_store(there.master_addr, there.master_port, timeout=timedelta(seconds=20.0)).set("here/1", "")
