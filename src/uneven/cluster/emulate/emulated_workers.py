"""The workers of an emulation: started as by torch's launcher, supervised, ended."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from uneven.cluster.emulate.launcher import EmulatedLauncher, meeting_store
from uneven.cluster.emulate.machines import Machines
from uneven.cluster.pure.describe.spec import ClusterSpec
from uneven.errors import LaunchError
from uneven.runtime.jobs import Command, Ending, Events, How
from uneven.runtime.launch import Launch
from uneven.runtime.launch.failure import Death, blame, gone, told_in
from uneven.runtime.launch.worker_env import shutdown_within_s
from uneven.runtime.world import (
    NODE_VARIABLE,
    READY_VARIABLE,
    RUN_VARIABLE,
    SHARE_VARIABLE,
    SITE_VARIABLE,
    WORLD_VARIABLE,
    Elastic,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """The program of every node. Raises ConfigError without a target, UnknownNameError if the script does not exist."""

    target: tuple[str, ...]  # script (or module) and its arguments
    module: bool = False  # the target is a module, as with ``python -m``

    def __post_init__(self) -> None:
        Launch(target=self.target, module=self.module)  # raises the same errors as `uneven run`

    @property
    def line(self) -> tuple[str, ...]:
        return (sys.executable, "-u", *(["-m"] if self.module else []), *self.target)


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
        "RANK": str(worker),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "GROUP_RANK": str(worker),
        "GROUP_WORLD_SIZE": str(size),
        "ROLE_NAME": "default",
        "ROLE_RANK": str(worker),
        "ROLE_WORLD_SIZE": str(size),
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


@dataclass(slots=True, eq=False)
class EmulatedWorker:
    """One worker, from its start."""

    number: int  # its rank; in elastic runs, its number for life
    node: int  # index of its node in the description
    process: Command
    killed_by: str = ""  # the reason why the description kills it
    settled: bool = False  # its end has been reported to the others

    @property
    def running(self) -> bool:
        return self.process.ending is None


class Workers:
    """The workers of an emulation: one on every node; in elastic runs, on the nodes that have one now.

    Args:
        machines: of the nodes; the calling thread starts the workers.
        launcher: of an elastic run; the nodes present at the start get a worker.

    Attributes:
        founders: the workers at the start of the run.
    """

    def __init__(
        self,
        spec: ClusterSpec,
        program: Program,
        machines: Machines,
        run_directory: Path,
        events: Events,
        launcher: EmulatedLauncher | None = None,
    ) -> None:
        self._spec = spec
        self._program = program
        self._machines = machines
        self._run_directory = run_directory
        self._events = events
        self._launcher = launcher
        self._store = meeting_store(machines) if launcher is None else launcher.store
        self._end_within_s = shutdown_within_s()
        self._all: list[EmulatedWorker] = []
        self._on: dict[int, EmulatedWorker] = {}  # the newest of each node
        there = [i for i, node in enumerate(spec.nodes) if launcher is None or node.name in spec.initial_members]
        self._size = len(there)
        for number, node in enumerate(there):
            self._start(node, number)
        self.founders = tuple(self._all)

    def on(self, node: int) -> EmulatedWorker | None:
        worker = self._on.get(node)
        return worker if worker is not None and worker.running else None

    def __getitem__(self, number: int) -> EmulatedWorker:
        return self._all[number]

    @property
    def running(self) -> list[EmulatedWorker]:
        return [one for one in self._all if one.running]

    @property
    def lost(self) -> list[EmulatedWorker]:
        return [one for one in self._all if not one.running and not self._well(one)]

    @property
    def failed(self) -> bool:
        """True if the run has failed: a worker has failed, and no other one finishes the script."""
        if self._launcher is None:
            return bool(self.lost)
        return not self.running and bool(self.lost) and not self._launcher.through

    def look(self) -> None:
        """Report ended workers to the others, in an elastic run."""
        for one in self._all if self._launcher is not None else ():
            ending = one.process.ending
            if ending is None or one.settled:
                continue
            one.settled = True
            assert self._launcher is not None
            if not self._launcher.settle(one.number, ending):
                print(f"uneven: {gone(self._death(one))}", file=sys.stderr)

    def join(self, node: int) -> EmulatedWorker:
        """Start a worker on an empty node of a running emulation, without limits until it trains."""
        assert self._launcher is not None
        worker = self._start(node, self._launcher.next_worker())
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
            self._machines.lift(one.node)
            one.process.ask_to_end()
        deadline_s = time.monotonic() + self._end_within_s
        while self.running and (left_s := deadline_s - time.monotonic()) > 0 and not in_a_hurry():
            self._events.wait(left_s)
            self.look()
        for one in self.running:
            self._machines.kill(one.node)
            one.process.wait()

    def failure(self) -> LaunchError:
        """Return the reason of the end; at least one worker has failed, and all have ended."""
        first_s = min(one.process.ending.at_s for one in self._all if one.process.ending is not None)
        deaths = [self._death(one) for one in self.lost]
        return blame(deaths, first_s=first_s, shutdown_within_s=self._end_within_s)

    def forget_errors(self) -> None:
        for path in self._run_directory.glob("error-*"):
            path.unlink()

    def _start(self, node: int, number: int) -> EmulatedWorker:
        env = environment(self._spec, node, number, self._machines, self._run_directory, self._size)
        if self._launcher is not None:
            env |= self._launcher.variables(node)
        worker = EmulatedWorker(number, node, self._machines.start(node, self._program.line, env, self._events))
        self._all.append(worker)
        self._on[node] = worker
        return worker

    def _well(self, one: EmulatedWorker) -> bool:
        ending = one.process.ending
        if self._launcher is not None and one.settled:
            return one.number in self._launcher.ended
        return ending is not None and ending.how is How.ENDED

    def _death(self, one: EmulatedWorker) -> Death:
        ending = one.process.ending
        assert ending is not None
        why = one.killed_by
        if not why and ending == Ending.of(-signal.SIGKILL):
            why = self._machines.why_killed(one.node)
        return Death(
            rank=one.number,
            where=self._spec.nodes[one.node].name,
            pid=one.process.pid,
            exit_code=ending.code or 0,
            ended_s=ending.at_s,
            told=told_in(error_file(self._run_directory, one.number)),
            killed_by=why,
        )
