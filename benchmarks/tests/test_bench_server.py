"""The parts of ``uneven bench server`` that are quick: killed shards, and an end on request."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from uneven_bench.server import restart as server_restart


def test_a_killed_shard_loses_no_movement_and_the_model_learns(tmp_path: Path) -> None:
    accuracy, unaccounted = server_restart.train(30, 1, "digits", tmp_path)
    assert accuracy > 0.7
    assert unaccounted < 1e-5


def test_a_bench_that_is_told_to_end_leaves_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "uneven", "bench", "server", "--quick"]
    bench = subprocess.Popen(command, env={**os.environ, "TMPDIR": str(tmp_path)}, stderr=subprocess.DEVNULL)
    try:
        me, children = psutil.Process(bench.pid), []
        limit_s = time.monotonic() + 60.0
        while not children and time.monotonic() < limit_s:
            time.sleep(0.05)
            children = me.children(recursive=True)
        assert children, "it has started something"
        bench.terminate()
        assert bench.wait(20.0) == 128 + signal.SIGTERM
    finally:
        bench.kill()
    assert psutil.wait_procs(children, 10.0)[1] == []
    assert list(tmp_path.iterdir()) == []
