"""The parts of ``uneven bench server`` that are quick: killed shards, and the tables."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console

from uneven_bench.server import bench as server
from uneven_bench.server import restart as server_restart
from uneven_bench.server.copy import FAR, NEAR, PIECES, PLAIN


def test_a_killed_shard_loses_no_movement_and_the_model_learns(tmp_path: Path) -> None:
    accuracy, unaccounted = server_restart.train(30, 1, "digits", tmp_path)
    assert accuracy > 0.7
    assert unaccounted < 1e-5


def test_the_tables_show_every_figure() -> None:
    grown = {"memory_bytes": [1e8] * 9 + [1.01e8], "descriptors": [12.0] * 10, "threads": [8.0] * 10}
    result: dict[str, Any] = {
        "bar_of_plain": 0.5,
        "copy": {
            "bytes": 16 << 20,
            "seconds": {PLAIN: 0.02, PIECES: 0.03, FAR: 0.05, NEAR: 0.025},
            "of": {FAR: {PLAIN: [0.4, 0.3, 0.5], PIECES: [0.6, 0.5, 0.7]}, NEAR: {PLAIN: [0.8, 0.7, 0.9]}},
        },
        "crowd": {"seconds": 20.0, "steps": 12_345, "lost": 0.0, "shards": grown, "workers": grown},
        "restart": {
            "kills": 2,
            "steps": 150,
            "unaccounted": 1e-6,
            "unaccounted_undisturbed": 2e-6,
            "accuracy": 0.91,
            "accuracy_undisturbed": 0.92,
        },
        "fuzz": {"messages": 1000, "refused": {"unknown kind": 1000}, "seconds": 1.0},
    }
    console = Console(width=160, record=True, file=io.StringIO())
    for table in server.tables(result):
        console.print(table)
    printed = console.export_text()
    for words in ("0.40 × [0.30 … 0.50]", "0.80 × [0.70 … 0.90]", "12,345", " 101", "91.0%", "2.0e-06", "1,000"):
        assert words in printed


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
