"""The workers of an emulation: started as torch's launcher would, watched, ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from uneven.cluster.spec import ClusterSpec
from uneven.emulate.machines import Machines
from uneven.errors import LaunchError
from uneven.launch import Launch
from uneven.launch.failure import Death, blame, told_in
from uneven.world import NODE_VARIABLE, READY_VARIABLE, RUN_VARIABLE, WORLD_VARIABLE

_END_WITHIN_S = 10.0
_LOOK_EVERY_S = 0.02


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
    """

    def __init__(self, spec: ClusterSpec, program: Program, machines: Machines, run_directory: Path) -> None:
        self._names = [node.name for node in spec.nodes]
        self._machines = machines
        self._run_directory = run_directory
        self._killed_by: dict[int, str] = {}
        self._ended_s: dict[int, float] = {}
        self._processes: list[subprocess.Popen[bytes]] = []
        for rank in range(len(spec.nodes)):
            env = environment(spec, rank, machines, run_directory)
            self._processes.append(machines.start(rank, program.line, env))

    def look(self) -> None:
        """Notice who has ended."""
        for rank, process in enumerate(self._processes):
            if rank not in self._ended_s and process.poll() is not None:
                self._ended_s[rank] = time.time()

    def running(self, rank: int) -> bool:
        """Whether a worker had not ended at the last look."""
        return rank not in self._ended_s

    @property
    def all_ended(self) -> bool:
        """Whether nobody ran any more at the last look."""
        return len(self._ended_s) == len(self._processes)

    @property
    def failed(self) -> bool:
        """Whether somebody had ended badly at the last look."""
        return any(self._processes[rank].returncode != 0 for rank in self._ended_s)

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
        self.look()
        for rank, process in enumerate(self._processes):
            if self.running(rank):
                self._machines.lift(rank)
                process.send_signal(signal.SIGTERM)
        deadline_s = time.monotonic() + _END_WITHIN_S
        while not self.all_ended and time.monotonic() < deadline_s and not in_a_hurry():
            time.sleep(_LOOK_EVERY_S)
            self.look()
        for rank, process in enumerate(self._processes):
            if self.running(rank):
                self._machines.kill(rank)
                process.wait()
        self.look()

    def failure(self) -> LaunchError:
        """Why the run has ended; one worker at least has failed, and all have ended."""
        ends = sorted(self._ended_s.values())
        return blame(self._deaths(), first_s=ends[0], shutdown_within_s=_END_WITHIN_S)

    def _deaths(self) -> list[Death]:
        deaths = []
        for rank, process in enumerate(self._processes):
            if not process.returncode:
                continue
            why = self._killed_by.get(rank, "")
            if not why and process.returncode == -signal.SIGKILL:
                why = self._machines.why_killed(rank)
            deaths.append(
                Death(
                    rank=rank,
                    where=self._names[rank],
                    pid=process.pid,
                    exit_code=process.returncode,
                    ended_s=self._ended_s[rank],
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
