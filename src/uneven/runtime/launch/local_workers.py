"""The workers of a launcher: their processes, their shares of a core, and how they end."""

import logging
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from uneven.errors import ConfigError, LaunchError
from uneven.runtime.jobs import Command, Events
from uneven.runtime.launch.failure import Death, told_in
from uneven.runtime.launch.launch_spec import Launch
from uneven.runtime.launch.readiness import Readiness
from uneven.runtime.system import KILL
from uneven.runtime.throttle.throttle import Throttle

_log = logging.getLogger(__name__)

_DIES_WITHIN_S = 30.0


@dataclass(slots=True, eq=False, kw_only=True)
class LocalWorker:
    """A worker, from its start."""

    rank: int
    place: int  # its local rank; in an emulation, the index of its node
    process: Command
    error_file: Path  # its own report about its end, see uneven.runtime.world.report_failures
    killed_by: str = ""  # the reason why it is killed

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def running(self) -> bool:
        return self.process.ending is None

    def death(self, **more: Any) -> Death:
        """Return its abnormal end, with ``more`` facts about it."""
        ending = self.process.ending
        assert ending is not None
        return Death(
            rank=self.rank,
            pid=self.pid,
            exit_code=ending.code or 0,
            ended_s=ending.at_s,
            told=told_in(self.error_file),
            killed_by=self.killed_by,
            **more,
        )


class LocalWorkers(ABC):
    """The running workers of a launcher, by rank. They end with the thread that starts them."""

    def __init__(self, events: Events) -> None:
        self.running: dict[int, LocalWorker] = {}
        self._events = events

    @abstractmethod
    def ended(self, worker: LocalWorker) -> None:
        """Handle the end of a worker that has left `running`."""

    def watch(self, rank: int, place: int, error_file: Path, start: Callable[..., Command]) -> LocalWorker:
        """Start a worker with ``start(ended=…)``, whose argument its process calls at its end."""
        process = start(ended=partial(self._reap, rank))
        self.running[rank] = LocalWorker(rank=rank, place=place, process=process, error_file=error_file)
        return self.running[rank]

    def start(
        self,
        rank: int,
        place: int,
        line: Sequence[str],  # program and arguments
        env: Mapping[str, str],  # on top of this process's environment
        error_file: Path,
        **streams: Any,  # see Command
    ) -> None:
        env = {**os.environ, **env, "TORCHELASTIC_ERROR_FILE": str(error_file)}
        self.watch(
            rank, place, error_file, partial(Command, f"worker {rank}", line, env=env, events=self._events, **streams)
        )

    def end(
        self, ask: Callable[[Command], None], within_s: float, in_a_hurry: Callable[[], bool] = lambda: False
    ) -> None:
        """Ask all workers to end; kill those that still run after ``within_s``, or once ``in_a_hurry()``."""
        for worker in self.running.values():
            ask(worker.process)
        until_s = time.monotonic() + within_s
        while self.running and (left_s := until_s - time.monotonic()) > 0 and not in_a_hurry():
            self._events.wait(left_s)
        self.kill()

    def _reap(self, rank: int, process: Command) -> None:
        worker = self.running.get(rank)
        if worker is not None and worker.process is process:  # not one that `kill` has given up
            del self.running[rank]
            self.ended(worker)

    def kill(self) -> None:
        for worker in self.running.values():
            worker.process.signal(KILL, group=True)
        until_s = time.monotonic() + _DIES_WITHIN_S
        while self.running and (left_s := until_s - time.monotonic()) > 0:
            self._events.wait(left_s)
        if self.running:  # it waits in the kernel, for example for a file system that does not answer
            pids = ", ".join(str(worker.pid) for worker in self.running.values())
            _log.warning(f"process {pids} has not ended {_DIES_WITHIN_S:g} s after SIGKILL")
            self.running.clear()


class CoreShares:
    """The throttle of a launcher's workers: each one has its share of a core while it trains.

    Raises LaunchError if the throttle cannot be started.
    """

    def __init__(self, launch: Launch, run_directory: Path | None) -> None:
        self._shares = launch.shares
        self._throttle = Throttle(period_s=launch.throttle_period_s) if launch.shares else None
        self._limited: set[int] = set()
        self._readiness: Readiness | None = None
        if launch.wait_ready and run_directory is not None:
            self._readiness = Readiness(run_directory, launch.ready_within_s)

    def look(self, workers: Collection[LocalWorker], port: int) -> None:
        """Throttle the workers that train now; ``port`` is that of the rendezvous."""
        if self._throttle is None:
            return
        self._limited &= {one.pid for one in workers}
        for one in workers:
            ready = self._readiness is None or self._readiness(one.pid, one.rank, port)
            try:
                if ready and one.pid not in self._limited:
                    self._throttle.limit(one.pid, self._shares[one.place])
                    self._limited.add(one.pid)
            except ConfigError:
                continue  # it has ended in the meantime
            except LaunchError as error:
                _log.warning(str(error))
                self.close()  # the throttle's process has died, so all workers run at full speed from now on
                return

    def close(self) -> None:
        if self._throttle is not None:
            self._throttle.close()
            self._throttle = None
