"""The workers of an emulation: started as by torch's launcher, supervised, ended."""

import logging
import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

from uneven.cluster.emulate.isolated import Machines
from uneven.cluster.pure.describe.spec import ClusterSpec
from uneven.errors import LaunchError
from uneven.runtime.jobs import Command, Ending, Events, How
from uneven.runtime.launch import Launch
from uneven.runtime.launch.failure import Death, blame, gone
from uneven.runtime.launch.local_workers import LocalWorker, LocalWorkers
from uneven.runtime.launch.remote_workers import THROUGH, settled
from uneven.runtime.launch.worker_env import role, shutdown_within_s
from uneven.runtime.membership_board import WORKERS, Board
from uneven.runtime.world import (
    ELASTIC_VARIABLE,
    NODE_VARIABLE,
    READY_VARIABLE,
    RUN_VARIABLE,
    SHARE_VARIABLE,
    SITE_VARIABLE,
    WORLD_VARIABLE,
)

_log = logging.getLogger(__name__)


def environment(
    spec: ClusterSpec, node: int, worker: int, machines: Machines, run_directory: Path, size: int
) -> dict[str, str]:
    """Return the environment of a worker: the user's, the variables of torch's launcher, those of uneven.

    In elastic runs ``worker`` is its number for life, otherwise that of its node; ``size`` counts workers at the start.
    """
    its = spec.nodes[node]
    threads = {"OMP_NUM_THREADS": str(its.threads)} if "OMP_NUM_THREADS" not in os.environ else {}
    return {
        **os.environ,
        **threads,
        **machines.network,
        **role("default", worker, size),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "GROUP_RANK": str(worker),
        "GROUP_WORLD_SIZE": str(size),
        "TORCHELASTIC_RUN_ID": run_directory.name,
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_ERROR_FILE": str(error_file(run_directory, worker)),
        RUN_VARIABLE: str(run_directory),
        READY_VARIABLE: "1",
        WORLD_VARIABLE: "emulated",
        NODE_VARIABLE: its.name,
        **({SITE_VARIABLE: its.site} if its.site else {}),
        **({SHARE_VARIABLE: repr(its.cores * its.share.at(0.0))} if its.share.constant else {}),
    }


def error_file(run_directory: Path, worker: int) -> Path:
    """Return the path of a worker's report about its end, see :func:`uneven.runtime.world.report_failures`."""
    return run_directory / f"error-{worker}.json"


class EmulatedWorkers(LocalWorkers):
    """The workers of an emulation: one on every node; in elastic runs, on the nodes that have one now.

    Args:
        launch: the script or module of every node, and the bounds of an elastic run, in which only the nodes present at
            the start get a worker.
        machines: of the nodes; the calling thread starts the workers.

    Attributes:
        founders: the workers at the start of the run.
        lost: the workers that have failed or died.
    """

    def __init__(
        self, spec: ClusterSpec, launch: Launch, machines: Machines, run_directory: Path, events: Events
    ) -> None:
        from uneven.runtime.launch.rendezvous import keep_store  # it imports torch
        from uneven.runtime.launch.store_server import open_run

        super().__init__(events)
        self.lost: list[LocalWorker] = []
        self._spec = spec
        self._launch = launch
        self._machines = machines
        self._run_directory = run_directory
        self._end_within_s = shutdown_within_s()
        self._all: list[LocalWorker] = []
        self._finished = False
        # The first worker may be stopped most of the time, and would delay requests, so this process has the store.
        self._store = machines.meet(lambda host, port: keep_store(host, port)[0])
        self._board = Board(self._store)
        there = [i for i, node in enumerate(spec.nodes) if not launch.elastic or node.name in spec.initial_members]
        self._run = open_run(self._store, len(there), launch.bounds, launch.silence_s)
        self._board.count(WORKERS, len(there))
        self.founders = tuple(self._add(node, number) for number, node in enumerate(there))

    def on(self, node: int) -> LocalWorker | None:
        return next((one for one in self.running.values() if one.place == node), None)

    def __getitem__(self, number: int) -> LocalWorker:
        return self._all[number]

    @property
    def failed(self) -> bool:
        """True if the run has failed: a worker has failed, and no other one finishes the script."""
        others = self._launch.elastic and (self.running or self._finished)
        return bool(self.lost) and not others

    def ended(self, worker: LocalWorker) -> None:
        ending = worker.process.ending
        assert ending is not None
        if not worker.killed_by and ending == Ending.of(-signal.SIGKILL):
            worker.killed_by = self._machines.why_killed(worker.place)
        if self._launch.elastic:
            end = settled(self._board, worker.rank, ending)
        else:
            end = THROUGH if ending.how is How.ENDED else ""
        self._finished |= end == THROUGH
        if not end:
            self.lost.append(worker)
            if self._launch.elastic:
                _log.warning(gone(self._death(worker)))

    def join(self, node: int) -> LocalWorker:
        """Start a worker on an empty node of a running emulation, without limits until it trains."""
        worker = self._add(node, self._board.count(WORKERS, 1) - 1)
        self._machines.lift(node)
        return worker

    def kill_on(self, node: int, why: str) -> None:
        if (worker := self.on(node)) is not None:
            worker.killed_by = why
            self._machines.kill(node)

    def leave(self, node: int) -> None:
        """Ask a worker to leave after its step."""
        if (worker := self.on(node)) is not None:
            worker.process.ask_to_end()

    def end_all(self, in_a_hurry: Callable[[], bool]) -> None:
        """Ask all workers to end, wait for at most ten seconds, or until ``in_a_hurry()``; then kill the rest."""
        for one in self.running.values():
            self._machines.lift(one.place)
        self.end(Command.ask_to_end, self._end_within_s, in_a_hurry)

    def failure(self) -> LaunchError:
        """Return the reason of the end; at least one worker has failed, and all have ended."""
        first_s = min(one.process.ending.at_s for one in self.lost if one.process.ending is not None)
        return blame(list(map(self._death, self.lost)), first_s=first_s, shutdown_within_s=self._end_within_s)

    def forget_errors(self) -> None:
        seen = self._run_directory.glob("error-" + "[0-9a-f]" * 16)  # what report_failures printed
        for path in (*(one.error_file for one in self._all), *seen):
            path.unlink(missing_ok=True)

    def _add(self, node: int, number: int) -> LocalWorker:
        env = environment(self._spec, node, number, self._machines, self._run_directory, self._run["founders"])
        if self._launch.elastic:
            address = self._machines.address(node)
            env[ELASTIC_VARIABLE] = self._run["elastic"] + ("" if address is None else f":{address}")
        start = partial(self._machines.start, node, self._launch.line, env, self._events)
        self._all.append(self.watch(number, node, error_file(self._run_directory, number), start))
        return self._all[-1]

    def _death(self, one: LocalWorker) -> Death:
        return one.death(where=self._spec.nodes[one.place].name)
