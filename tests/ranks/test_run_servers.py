"""``uneven run --servers``: shards beside the workers, started again when they die, gone at the end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest

from uneven.cluster.emulate.ports import quiet_ports
from uneven.errors import ConfigError, LaunchError
from uneven.runtime.messages.process import ShardKeeper
from uneven.runtime.parameter_server import ZmqLine
from uneven_bench.forked.scripts import run_script

SCRIPT = Path(__file__).with_name("shared_copy_script.py")


def test_a_run_has_shards_and_a_killed_one_comes_back(tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = ["-m", "uneven", "run", "--nproc", "2", "--servers", "2", "--run-dir", run]
    done = run_script([*command, SCRIPT, tmp_path], timeout_s=100)
    assert done.returncode == 0, done.stderr
    assert [(tmp_path / f"held-{rank}").read_text() for rank in range(2)] == ["[120.0]", "[120.0]"]
    assert "shard 0 of the parameter server was killed by SIGKILL and is started again" in done.stderr
    for number in range(2):
        assert not psutil.pid_exists(json.loads((run / "server" / f"shard-{number}.address").read_text())["pid"])


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the loopback has one address only")
def test_shards_of_an_elastic_run_listen_where_workers_of_other_machines_reach_them(tmp_path: Path) -> None:
    script = tmp_path / "nothing.py"
    script.write_text("")
    words = ["--nproc", "1", "--elastic", "1:2", "--servers", "1", "--rdzv-endpoint", f"127.0.0.2:{quiet_ports(1)[0]}"]
    run_script(["-m", "uneven", "run", *words, "--run-dir", tmp_path / "run", script], timeout_s=100)
    where = json.loads((tmp_path / "run" / "server" / "shard-0.address").read_text())["remote"]
    assert where.startswith("tcp://127.0.0.2:")


def test_a_shard_that_dies_at_once_again_and_again_is_given_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where somebody has a file of a name that Python's own modules have
    (tmp_path / "secrets.py").write_text("raise ImportError('not what a shard looks for')")
    with pytest.raises(LaunchError, match="shard 0 of the parameter server could not be started"):
        ShardKeeper(tmp_path / "nowhere", 1, 1, bind="tcp://203.0.113.9")
    with ShardKeeper(tmp_path / "server", 1, 1) as keeper:
        while "shard 0 of the parameter server was killed by SIGKILL and is not started again" not in caplog.text:
            with contextlib.suppress(ProcessLookupError):
                os.kill(keeper.pids()[0], signal.SIGKILL)
            time.sleep(0.01)
        assert keeper.deaths >= 3


def test_shards_that_cannot_be_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="0 shards of the parameter server: give a positive number"):
        ShardKeeper(tmp_path / "none", 0, 1)
    with pytest.raises(ConfigError, match="names no shards: start the script with `uneven run --servers N`"):
        ZmqLine.of_run(tmp_path)
    script = tmp_path / "nothing.py"
    script.touch()
    from uneven.cli import main

    with pytest.raises(SystemExit) as ended:
        main(["run", "--nproc", "auto", "--servers", "1", "--run-dir", str(tmp_path / "run"), str(script)])
    assert ended.value.code == 2
    assert not (tmp_path / "run").exists()
