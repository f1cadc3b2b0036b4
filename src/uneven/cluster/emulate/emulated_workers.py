"""The workers of an emulation: started as by torch's launcher, supervised, ended."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from uneven.cluster.emulate.machines import Machines
from uneven.cluster.pure.describe.spec import ClusterSpec
from uneven.errors import LaunchError
from uneven.runtime.jobs import Ending, Events, How
from uneven.runtime.launch import Launch
from uneven.runtime.launch.failure import Death, blame, gone
from uneven.runtime.launch.local_workers import Worker
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
    Elastic,
)


def bounds(elastic: str | None, silence_s: float, founders: int) -> Elastic | None:
    """Return the meaning of ``--elastic`` and ``--silence`` for a run that starts with ``founders`` workers. Raises the
    ConfigErrors of `uneven run`."""
    if elastic is None:
        return None
    launch = Launch(target=("m",), module=True, nproc=str(founders), elastic=elastic, silence_s=silence_s)
    return Elastic(*launch.bounds, silence_s)


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


class Workers:
    """The workers of an emulation: one on every node; in elastic runs, on the nodes that have one now.

    Args:
        program: the script or module of every node, with its arguments.
        machines: of the nodes; the calling thread starts the workers.
        elastic: the bounds of an elastic run; the nodes present at the start get a worker.

    Attributes:
        founders: the workers at the start of the run.
    """

    def __init__(
        self,
        spec: ClusterSpec,
        program: Launch,
        machines: Machines,
        run_directory: Path,
        events: Events,
        elastic: Elastic | None = None,
    ) -> None:
        from uneven.runtime.launch.rendezvous import keep_store  # it imports torch

        self._spec = spec
        self._program = program
        self._machines = machines
        self._run_directory = run_directory
        self._events = events
        self._elastic = elastic
        # The first worker may be stopped most of the time, and would delay requests, so this process has the store.
        self._store = machines.meet(lambda host, port: keep_store(host, port)[0])
        self._board = Board(self._store)
        self._end_within_s = shutdown_within_s()
        self._all: list[Worker] = []
        self._on: dict[int, Worker] = {}  # the newest of each node
        self._ends: dict[int, str] = {}  # of an elastic run: worker → how it ended in order, "" if it is missed
        there = [i for i, node in enumerate(spec.nodes) if elastic is None or node.name in spec.initial_members]
        self._size = len(there)
        self._board.count(WORKERS, self._size)
        for number, node in enumerate(there):
            self._start(node, number)
        self.founders = tuple(self._all)

    def on(self, node: int) -> Worker | None:
        worker = self._on.get(node)
        return worker if worker is not None and worker.running else None

    def __getitem__(self, number: int) -> Worker:
        return self._all[number]

    @property
    def running(self) -> list[Worker]:
        return [one for one in self._all if one.running]

    @property
    def lost(self) -> list[Worker]:
        return [one for one in self._all if not one.running and not self._well(one)]

    @property
    def failed(self) -> bool:
        """True if the run has failed: a worker has failed, and no other one finishes the script."""
        if self._elastic is None:
            return bool(self.lost)
        return not self.running and bool(self.lost) and THROUGH not in self._ends.values()

    def look(self) -> None:
        """Report ended workers to the others, in an elastic run."""
        for one in self._all if self._elastic is not None else ():
            ending = one.process.ending
            if ending is None or one.rank in self._ends:
                continue
            self._ends[one.rank] = settled(self._board, one.rank, ending)
            if not self._ends[one.rank]:
                print(f"uneven: {gone(self._death(one))}", file=sys.stderr)

    def join(self, node: int) -> Worker:
        """Start a worker on an empty node of a running emulation, without limits until it trains."""
        worker = self._start(node, self._board.count(WORKERS, 1) - 1)
        self._machines.lift(node)
        return worker

    def kill(self, node: int, why: str) -> None:
        if (worker := self.on(node)) is not None:
            worker.killed_by = why
            self._machines.kill(node)

    def leave(self, node: int) -> None:
        """Ask a worker to leave after its step."""
        if (worker := self.on(node)) is not None:
            worker.process.ask_to_end()

    def end(self, in_a_hurry: Callable[[], bool]) -> None:
        """Ask all workers to end, wait for at most ten seconds, or until ``in_a_hurry()``; then kill the rest."""
        for one in self.running:
            self._machines.lift(one.place)
            one.process.ask_to_end()
        deadline_s = time.monotonic() + self._end_within_s
        while self.running and (left_s := deadline_s - time.monotonic()) > 0 and not in_a_hurry():
            self._events.wait(left_s)
            self.look()
        for one in self.running:
            self._machines.kill(one.place)
            one.process.wait()

    def failure(self) -> LaunchError:
        """Return the reason of the end; at least one worker has failed, and all have ended."""
        first_s = min(one.process.ending.at_s for one in self._all if one.process.ending is not None)
        deaths = [self._death(one) for one in self.lost]
        return blame(deaths, first_s=first_s, shutdown_within_s=self._end_within_s)

    def forget_errors(self) -> None:
        for path in self._run_directory.glob("error-*"):
            path.unlink()

    def _start(self, node: int, number: int) -> Worker:
        env = environment(self._spec, node, number, self._machines, self._run_directory, self._size)
        if self._elastic is not None:
            address = self._machines.address(node)
            bounds = f"{self._elastic.least}:{self._elastic.most}:{self._elastic.silence_s:g}"
            env[ELASTIC_VARIABLE] = bounds if address is None else f"{bounds}:{address}"
        process = self._machines.start(node, self._program.line, env, self._events)
        worker = Worker(rank=number, place=node, process=process, error_file=error_file(self._run_directory, number))
        self._all.append(worker)
        self._on[node] = worker
        return worker

    def _well(self, one: Worker) -> bool:
        if one.rank in self._ends:
            return bool(self._ends[one.rank])
        return one.process.ending is not None and one.process.ending.how is How.ENDED

    def _death(self, one: Worker) -> Death:
        if not one.killed_by and one.process.ending == Ending.of(-signal.SIGKILL):
            one.killed_by = self._machines.why_killed(one.place)
        return one.death(where=self._spec.nodes[one.place].name)
