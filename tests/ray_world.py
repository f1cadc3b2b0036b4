"""Ray clusters of which a test is the only user: several nodes on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

TOO_BUSY = "The current node timed out during startup"
"""What Ray says where a node is not there after 30 s, a limit that cannot be set: seen with fifty busy processes on two
cores. It says nothing about what is tested."""

PATIENCE_S = 200.0
"""For nodes to come up; who waits longer is ended by the test."""

_CLUSTER = {
    "health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_timeout_ms": 60_000,
    "health_check_failure_threshold": 3,
    "enable_worker_prestart": False, "prestart_worker_first_driver": False,
    "idle_worker_killing_time_threshold_ms": 600_000,
}  # fmt: skip
"""A dead node is found soon, for its port is closed; one that is only slow to answer is not taken for dead. No process
is started before it is needed, and one that has imported torch is used again."""

NODE = {"object_store_memory": 80 * 2**20, "wait": False}
"""Of every node, beside its number of CPU slots."""


@contextmanager
def cluster(*slots: int) -> Iterator[Any]:
    """A cluster, in a program of its own (:func:`program`): Ray keeps processes, ports and variables.

    Args:
        slots: CPU slots of its nodes; the first one has its head process.
    """
    from ray.cluster_utils import Cluster

    one = Cluster()
    try:
        head = {"include_dashboard": False, "include_log_monitor": False, "no_monitor": True}
        one.add_node(num_cpus=slots[0], **NODE, **head, _system_config=_CLUSTER)
        one.wait_for_nodes(PATIENCE_S)
        for count in slots[1:]:
            one.add_node(num_cpus=count, **NODE)
            one.wait_for_nodes(PATIENCE_S)
        yield one
    finally:
        one.shutdown()


@contextmanager
def program(path: Path, folder: Path, **more: str) -> Iterator[subprocess.Popen[str]]:
    """The program with the cluster. Ray keeps files in a directory of its own, whose name must be short; a token in the
    home directory; and it reports its use to its makers unless told not to.

    Args:
        more: variables.
    """
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as rays:
        home = folder / "home"
        home.mkdir()
        environment = {
            **os.environ, "OMP_NUM_THREADS": "1", "RAY_TMPDIR": rays, "HOME": str(home), "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_gcs_server_port_wait_time_s": "200",
            "RAY_memory_monitor_refresh_ms": "0",  # else it kills processes when others fill the memory
            **more,
        }  # fmt: skip
        environment.pop("RAY_ADDRESS", None)
        running = subprocess.Popen(
            [sys.executable, str(path), str(folder)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip
        with running:
            try:
                yield running
            finally:
                running.kill()
