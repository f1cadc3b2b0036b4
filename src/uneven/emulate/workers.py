"""The workers of an emulation: started as torch's launcher would, watched, ended."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from uneven.cluster.spec import ClusterSpec
from uneven.emulate.machines import Machines
from uneven.errors import LaunchError
from uneven.jobs import Command, Ending, Events, How
from uneven.launch import Launch
from uneven.launch.failure import Death, blame, told_in
from uneven.world import NODE_VARIABLE, READY_VARIABLE, RUN_VARIABLE, WORLD_VARIABLE

_END_WITHIN_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What runs on every node.

    Attributes:
        target: script (or module) and its arguments.
        module: the target is a module, as with ``python -m``.

    Raises:
        ConfigError: no target.
        UnknownNameError: the script does not exist.
    """

    target: tuple[str, ...]
    module: bool = False

    def __post_init__(self) -> None:
        Launch(target=self.target, module=self.module)  # refuses what `uneven run` refuses

    @property
    def line(self) -> tuple[str, ...]:
        """The command."""
        return (sys.executable, "-u", *(["-m"] if self.module else []), *self.target)


def environment(spec: ClusterSpec, rank: int, machines: Machines, run_directory: Path) -> dict[str, str]:
    """What a worker finds in its environment: the user's own, what torch's launcher sets, what uneven sets.

    The store in which workers meet is rank 0's own, not the launcher's, so that meeting uses the nodes' links.
    """
    node, size = spec.nodes[rank], str(len(spec.nodes))
    threads = {"OMP_NUM_THREADS": str(node.threads)} if "OMP_NUM_THREADS" not in os.environ else {}
    return {
        **os.environ,
        **threads,
        **machines.network,
        "RANK": str(rank),
        "WORLD_SIZE": size,
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "GROUP_RANK": str(rank),
        "GROUP_WORLD_SIZE": size,
        "ROLE_NAME": "default",
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": size,
        "TORCHELASTIC_RUN_ID": run_directory.name,
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCHELASTIC_ERROR_FILE": str(error_file(run_directory, rank)),
        RUN_VARIABLE: str(run_directory),
        READY_VARIABLE: "1",
        WORLD_VARIABLE: "emulated",
        NODE_VARIABLE: node.name,
    }


def error_file(run_directory: Path, rank: int) -> Path:
    """Where a worker writes about its end, see :func:`uneven.world.report_failures`."""
    return run_directory / f"error-{rank}.json"


class Workers:
    """One worker on every node.

    Args:
        machines: where they run; they are started in the thread that calls this.
        events: where their ends are heard of.
    """

    def __init__(
        self, spec: ClusterSpec, program: Program, machines: Machines, run_directory: Path, events: Events
    ) -> None:
        self._names = [node.name for node in spec.nodes]
        self._machines = machines
        self._run_directory = run_directory
        self._killed_by: dict[int, str] = {}
        self._events = events
        self._processes: list[Command] = []
        for rank in range(len(spec.nodes)):
            env = environment(spec, rank, machines, run_directory)
            self._processes.append(machines.start(rank, program.line, env, events))

    def running(self, rank: int) -> bool:
        """Whether its end has not been heard of."""
        return self._processes[rank].ending is None

    @property
    def all_ended(self) -> bool:
        """Whether nobody runs any more."""
        return len(self._ends) == len(self._processes)

    @property
    def failed(self) -> bool:
        """Whether somebody has ended badly."""
        return any(ending.how is not How.ENDED for ending in self._ends.values())

    def kill(self, rank: int, why: str) -> None:
        """Kill a worker and everything on its node."""
        if self.running(rank):
            self._killed_by[rank] = why
            self._machines.kill(rank)

    def end(self, in_a_hurry: Callable[[], bool]) -> None:
        """Ask everybody to end and wait for it, ten seconds at most; the machines kill what is left.

        Args:
            in_a_hurry: whether to wait no longer.
        """
        for rank, process in enumerate(self._processes):
            if self.running(rank):
                self._machines.lift(rank)
                process.ask_to_end()
        deadline_s = time.monotonic() + _END_WITHIN_S
        while not self.all_ended and (left_s := deadline_s - time.monotonic()) > 0 and not in_a_hurry():
            self._events.wait(left_s)
        for rank, process in enumerate(self._processes):
            if self.running(rank):
                self._machines.kill(rank)
                process.wait()

    def failure(self) -> LaunchError:
        """Why the run has ended; one worker at least has failed, and all have ended."""
        first_s = min(ending.at_s for ending in self._ends.values())
        return blame(self._deaths(), first_s=first_s, shutdown_within_s=_END_WITHIN_S)

    @property
    def _ends(self) -> dict[int, Ending]:
        return {rank: one.ending for rank, one in enumerate(self._processes) if one.ending is not None}

    def _deaths(self) -> list[Death]:
        deaths = []
        for rank, ending in self._ends.items():
            if not ending.code:
                continue
            why = self._killed_by.get(rank, "")
            if not why and ending == Ending.of(-signal.SIGKILL):
                why = self._machines.why_killed(rank)
            deaths.append(
                Death(
                    rank=rank,
                    where=self._names[rank],
                    pid=self._processes[rank].pid,
                    exit_code=ending.code,
                    ended_s=ending.at_s,
                    told=_told(error_file(self._run_directory, rank)),
                    killed_by=why,
                )
            )
        return deaths

    def forget_errors(self) -> None:
        """Remove what the workers wrote about their ends; it has been told."""
        for rank in range(len(self._processes)):
            error_file(self._run_directory, rank).unlink(missing_ok=True)


def _told(path: Path) -> Mapping[str, object]:
    return told_in(path.read_text(encoding="utf-8")) if path.is_file() else {}
