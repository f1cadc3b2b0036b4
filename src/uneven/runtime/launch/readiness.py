"""The moment from which a worker is throttled to its share of a core: the start of its training.

On a tenth of a core, importing torch takes most of a minute, so it is not throttled. A worker with a session reports
its start. A script without one counts as training once it connects to the rendezvous, as every process group does.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import NamedTuple

import psutil

from uneven.runtime.rundir import is_coming, is_ready


class StartedWorker(NamedTuple):
    """A worker of this machine; ``port`` is that of the rendezvous, 0 if unknown."""

    pid: int
    rank: int
    local_rank: int
    port: int = 0


def always(worker: StartedWorker) -> bool:
    """Return True: throttle from the start."""
    return True


class Readiness:
    """The test of whether a worker is to be throttled: it trains (see ``run_directory``), or ``within_s`` are over."""

    def __init__(self, run_directory: Path, within_s: float) -> None:
        self._run_directory = run_directory
        self._within_s = within_s
        self._late_s = time.monotonic() + within_s
        self._said: set[int] = set()
        self._met: set[int] = set()
        self._late: set[int] = set()

    def __call__(self, worker: StartedWorker) -> bool:
        rank = worker.rank
        if is_ready(self._run_directory, rank):
            self._said.add(rank)
            return True
        if rank in self._said:
            return False  # its report has been withdrawn: it has finished
        # A worker that announced a session connects before it trains, so only its own report counts.
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
        return False  # it has ended, or we lack the permission
    # At any address: only the port of the rendezvous is known here.
    return any(line.raddr and line.raddr.port == worker.port for line in lines)
