"""Workers of an elastic run that Ray places: the second one is lost with its node, and a third one replaces it.

The first node is there from the start, for worker 1. A second node, for worker 2, joins and is removed. A third one
joins for worker 3.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ray_world import NODE, nodes
from test_elastic import HERE, free_port


def until(run: subprocess.Popen[str], there: Callable[[], bool]) -> None:
    """Wait; the run must not end before."""
    while not there():
        if run.poll() is not None:
            raise SystemExit(f"the run has ended too early: {run.communicate()[1]}")
        time.sleep(0.05)


def play(there: Any, folder: Path) -> dict[str, Any]:
    """Lose a node and add another one, while a run trains."""
    nodes(there, 1)
    environment = {**os.environ, "RAY_ADDRESS": there.address}
    line = [
        sys.executable, "-m", "uneven", "run", "--nproc", 1, "--elastic", "1:4", "--ray", 2, "--rdzv-endpoint",
        f"127.0.0.1:{free_port()}", "--run-dir", folder / "run", HERE / "elastic_script.py", folder, 1, 0,
        "till@3", "stay@2",
    ]  # fmt: skip
    run = subprocess.Popen(list(map(str, line)), env=environment, stderr=subprocess.PIPE, text=True)
    try:
        until(run, (folder / "1.jsonl").exists)
        second = there.add_node(num_cpus=1, **NODE)
        until(run, (folder / "stays").exists)
        there.remove_node(second, allow_graceful=False)
        there.add_node(num_cpus=1, **NODE)
        stderr = run.communicate()[1]
    finally:
        run.kill()
    return {"code": run.returncode, "stderr": stderr}
