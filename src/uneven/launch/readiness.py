"""From when on a worker has its share of a core: from when it trains, as near as the launcher can tell.

A worker with a session says so itself. A script without one, such as a plain ``DistributedDataParallel``, says nothing;
it counts as training from when it has gone to meet the others, which every process group begins with. Until then
workers import torch at full speed, which on a tenth of a core takes most of a minute.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import NamedTuple

import psutil

from uneven.rundir import is_coming, is_ready


class StartedWorker(NamedTuple):
    """A worker of this machine.

    Attributes:
        pid: of its process.
        rank: among all workers.
        local_rank: among those of this machine.
        port: where workers meet, at any address; 0 where nobody says.
    """

    pid: int
    rank: int
    local_rank: int
    port: int = 0


def always(worker: StartedWorker) -> bool:
    """From its start."""
    return True


class Readiness:
    """Tells whether a worker is to be throttled now.

    Args:
        run_directory: where workers say that a session will tell, that they train, and that they are through.
        within_s: a worker that nothing is known of by then is throttled all the same.
    """

    def __init__(self, run_directory: Path, within_s: float) -> None:
        self._run_directory = run_directory
        self._within_s = within_s
        self._late_s = time.monotonic() + within_s
        self._said: set[int] = set()
        self._met: set[int] = set()
        self._late: set[int] = set()

    def __call__(self, worker: StartedWorker) -> bool:
        """Whether it trains, or has had its time."""
        rank = worker.rank
        if is_ready(self._run_directory, rank):
            self._said.add(rank)
            return True
        if rank in self._said:
            return False  # it is through
        if not is_coming(self._run_directory, rank) and self._has_met(worker):
            return True
        if time.monotonic() < self._late_s:
            return False
        if rank not in self._late:
            self._late.add(rank)
            print(
                f"uneven: rank {rank} did not start training within {self._within_s:g} s (a loader of an "
                f"uneven.Session says so when it is first used): it has its share from now on",
                file=sys.stderr,
            )
        return True

    def _has_met(self, worker: StartedWorker) -> bool:
        if worker.rank in self._met:
            return True
        if not worker.port or not _connected(worker):
            return False
        if not self._met:
            print(
                "uneven: the workers meet without an uneven.Session: each has its share from then on", file=sys.stderr
            )
        self._met.add(worker.rank)
        return True


def _connected(worker: StartedWorker) -> bool:
    try:
        lines = psutil.Process(worker.pid).net_connections(kind="tcp")
    except (psutil.Error, OSError):
        return False  # it has ended, or may not be looked at
    return any(line.raddr and line.raddr.port == worker.port for line in lines)
