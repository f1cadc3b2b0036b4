"""The moment from which a worker is throttled to its share of a core: the start of its training.

On a tenth of a core, importing torch takes most of a minute, so it is not throttled. A worker with a session reports
its start. A script without one counts as training once it connects to the rendezvous, as every process group does.
"""

import logging
import time
from pathlib import Path

import psutil

from uneven.runtime.rundir import is_coming, is_ready

_log = logging.getLogger(__name__)


class Readiness:
    """Tests whether to throttle a worker: it trains (see ``run_directory``), or it started ``within_s`` ago."""

    def __init__(self, run_directory: Path, within_s: float) -> None:
        self._run_directory = run_directory
        self._within_s = within_s
        self._late_s: dict[int, float] = {}  # by process, because some start later than others, or once more
        self._met: set[int] = set()
        self._late: set[int] = set()

    def __call__(self, pid: int, rank: int, port: int) -> bool:
        """Return whether to throttle the worker now; ``port`` is that of the rendezvous."""
        self._late_s.setdefault(pid, time.monotonic() + self._within_s)
        if is_ready(self._run_directory, rank):
            return True
        # A worker that announced a session connects before it trains, so only its own report counts.
        if not is_coming(self._run_directory, rank) and self._has_met(pid, port):
            return True
        if time.monotonic() < self._late_s[pid]:
            return False
        if pid not in self._late:
            self._late.add(pid)
            _log.warning(
                f"rank {rank} did not start training within {self._within_s:g} s (the loader of an uneven.Session "
                "reports it): its share applies from now on"
            )
        return True

    def _has_met(self, pid: int, port: int) -> bool:
        if pid in self._met:
            return True
        if not _connected(pid, port):
            return False
        if not self._met:
            _log.info("the workers use no uneven.Session: their shares apply from now on")
        self._met.add(pid)
        return True


def _connected(pid: int, port: int) -> bool:
    try:
        lines = psutil.Process(pid).net_connections(kind="tcp")
    except (psutil.Error, OSError):
        return False  # it has ended, or we lack the permission
    # At any address: only the port of the rendezvous is known here.
    return any(line.raddr and line.raddr.port == port for line in lines)
