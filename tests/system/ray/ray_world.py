"""A Ray cluster with a single user: several nodes on this machine, in a program of its own."""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

TOO_BUSY = "The current node timed out during startup"
"""What Ray says where a node is not there after 30 s, a limit that cannot be set: seen with fifty busy processes on two
cores. It says nothing about what is tested."""

PATIENCE_S = 200.0
"""For nodes to come up; who waits longer is ended by the test."""

WHOLE_S = 700.0
"""For everything. Alone on two cores it is 40 s."""

_CLUSTER = {
    "health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_timeout_ms": 20_000,
    "health_check_failure_threshold": 3,
    "enable_worker_prestart": False, "prestart_worker_first_driver": False,
    "idle_worker_killing_time_threshold_ms": 600_000,
}  # fmt: skip
"""A dead node is found soon, for its port is closed; one that is only slow to answer is not taken for dead. No process
is started before it is needed, and one that has imported torch is used again."""

NODE = {"object_store_memory": 80 * 2**20, "wait": False}
"""Of every node, beside its number of CPU slots."""


@contextmanager
def cluster() -> Iterator[Any]:
    """Start a cluster whose head has no CPU slot; :func:`nodes` adds nodes that have one.

    It needs a program of its own (:func:`program`), because Ray keeps processes, ports and variables.
    """
    from ray.cluster_utils import Cluster

    faulthandler.dump_traceback_later(WHOLE_S - 20)  # says where it stands, before it is ended
    one = Cluster()
    try:
        head = {"include_dashboard": False, "no_monitor": True}
        one.add_node(num_cpus=0, **NODE, **head, _system_config=_CLUSTER)
        one.wait_for_nodes(PATIENCE_S)
        yield one
    finally:
        one.shutdown()


def nodes(there: Any, count: int) -> list[Any]:
    """Add nodes with one CPU slot each until there are ``count``; all of them."""
    while len(there.worker_nodes) < count:
        there.add_node(num_cpus=1, **NODE)
        there.wait_for_nodes(PATIENCE_S)
    return list(there.worker_nodes)


@contextmanager
def connected(there: Any) -> Iterator[None]:
    """Connect this program to the cluster as one job."""
    import ray

    ray.init(address=there.address, log_to_driver=False, logging_level=logging.CRITICAL)
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def program(path: Path, folder: Path, **more: str) -> Iterator[Callable[[], Any]]:
    """The program with the cluster; what it gives waits for its end and has its last line, JSON. Ray keeps files in a
    directory of its own, whose name must be short; a token in the home directory; and it reports its use to its makers
    unless told not to.

    Args:
        more: variables.
    """
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as rays:
        home = folder / "home"
        home.mkdir()
        environment = {
            **os.environ, "OMP_NUM_THREADS": "1", "RAY_TMPDIR": rays, "HOME": str(home), "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_gcs_server_port_wait_time_s": "200",
            "RAY_worker_niceness": "0",  # else, at 15, they wait for minutes for the processor that other tests use
            "RAY_memory_monitor_refresh_ms": "0",  # else it kills processes when others fill the memory
            **more,
        }  # fmt: skip
        environment.pop("RAY_ADDRESS", None)
        line = [sys.executable, str(path), str(folder)]
        # To files: a process of Ray's that lives longer would keep a pipe open.
        printed, complaints = folder / "printed.txt", folder / "complaints.txt"
        with printed.open("w") as out, complaints.open("w") as err:
            running = subprocess.Popen(line, stdout=out, stderr=err, env=environment)

        def found() -> Any:
            try:
                code = running.wait(WHOLE_S)
            except subprocess.TimeoutExpired:
                code = None
            said = complaints.read_text()
            if code and TOO_BUSY in said:
                pytest.skip("this machine is too busy for Ray, which gives a node 30 s to start")
            events = "" if code == 0 else _end(Path(rays, "ray/session_latest/logs/gcs_server.out"))
            assert code == 0, f"{path.name}: {code}\n{_end(complaints)}\n{_end(printed)}\n{events}"
            return json.loads(printed.read_text().splitlines()[-1])

        with running:
            try:
                yield found
            finally:
                running.kill()


def _end(path: Path) -> str:
    return path.read_text(errors="replace")[-8000:] if path.exists() else f"no {path}"
