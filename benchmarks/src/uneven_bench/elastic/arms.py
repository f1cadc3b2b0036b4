"""The systems that ``uneven bench elastic`` compares: how each starts workers, and lets one more join."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import sys
import time
from abc import ABC, abstractmethod
from dataclasses import asdict
from importlib.metadata import version
from inspect import signature
from pathlib import Path
from typing import Any

from uneven.cluster.emulate.pure.names import INTERFACE
from uneven.errors import LaunchError
from uneven_bench.elastic.cases import OURS, STEADY, TORCHFT, TORCHFT_DDP, at_own_pace
from uneven_bench.elastic.machines import Machines
from uneven_bench.elastic.worker import ElasticTask
from uneven_bench.elastic.workload import CountedWorkload
from uneven_bench.forked.scripts import Script
from uneven_bench.marked import MARK

TIMEOUT_S = 5.0
"""The time-out of gloo under torchft, as in its own example of DDP."""

TORCHRUN_TIMEOUT_S = 30.0
"""The time-out of gloo under torchrun."""

HERE = "127.0.0.1"
_STARTS_WITHIN_S = 60.0
_LOOK_EVERY_S = 0.01
_IMPORTED = (
    *(
        "uneven.cli.run",
        "uneven.runtime.launch.agent",
        "torch.distributed.run",
        "uneven_bench.elastic.script",
        "rich.console",
    ),
)
"""What all launchers or workers would import for themselves."""


class ElasticArm(ABC):
    """One system: it starts workers of a workload in a folder, and one more when asked.

    Args:
        folder: empty; for everything that the run writes.
        least, most: workers that there may be.
        between_faults_s: how long nothing happens, on the mean; for whoever saves checkpoints.
        silence_s: how long a worker of ours may be silent.
        restarts: workers that our launcher starts again by itself, if they have not left.
        machines: where to start them: what is started first on the first machine, each newcomer on one of its own.
            Without them, all on this one.
    """

    loop = ""

    def __init__(
        self,
        workload: CountedWorkload,
        folder: Path,
        *,
        least: int,
        most: int,
        between_faults_s: float,
        silence_s: float = 10.0,
        restarts: int = 0,
        machines: Machines | None = None,
    ) -> None:
        self.workload = workload
        self.folder = folder
        self.least, self.most = least, most
        self.between_faults_s = between_faults_s
        self.silence_s, self.restarts = silence_s, restarts
        self.scripts: list[Script] = []
        self.machines = machines
        self._head: Script | None = None

    @property
    def place(self) -> int:
        """The machine on which the next one starts."""
        return len(self.scripts)

    def place_of(self, pid: int, parent: int) -> int:
        """The machine of a worker and whoever has started it."""
        return next(place for place, script in enumerate(self.scripts) if script.pid in (pid, parent))

    @abstractmethod
    def start(self, workers: int) -> None:
        """Start so many."""

    @abstractmethod
    def join(self) -> Script:
        """Let one more come; the process that is its launcher, or the worker itself."""

    @property
    def running(self) -> bool:
        """Whether anything of what it has started can still train."""
        return any(script.poll() is None for script in self.scripts)

    def close_head(self) -> None:
        """End what the workers meet at, which does not end with them."""
        if self._head is not None:
            self._head.close()
            self._head = None

    def close(self) -> None:
        """End all processes that it has started, whatever they do."""
        for script in self.scripts:
            script.close()
        self.close_head()

    def said(self) -> str:
        """What launchers and workers have printed."""
        return "\n".join(script.printed() for script in self.scripts)

    def _run(self, *words: object, imported: tuple[str, ...] = ()) -> Script:
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith(("UNEVEN_", "TORCHELASTIC_"))},
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "OMP_NUM_THREADS": "1",
            "TMPDIR": str(self.folder),
            # torchrun's restart over gloo hangs or fails without it after a worker was killed: survivors dial ports of
            # the life before.
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
            MARK: str(self.folder),
        }
        if self.machines is not None:
            environment["GLOO_SOCKET_IFNAME"] = INTERFACE
            words = (*self.machines.words(self.place), *words[1:])  # without the -m
        return Script(words, cwd=self.folder, env=environment, merged=True, imported=(*_IMPORTED, *imported))

    def _trains(self, *words: object, imported: tuple[str, ...] = ()) -> Script:
        script = self._run(*words, imported=imported)
        self.scripts.append(script)
        return script

    @property
    def here(self) -> str:
        """The address of the next machine."""
        return HERE if self.machines is None else self.machines.address(self.place)

    def _met_at(self, kind: str, imported: tuple[str, ...] = ()) -> str:
        """Start what the workers meet at; its address."""
        where = self.folder / kind
        self._head = self._run("-m", "uneven_bench.elastic.head", kind, where, self.here, imported=imported)
        until_s = time.monotonic() + _STARTS_WITHIN_S
        while not where.exists():
            if time.monotonic() > until_s:
                raise LaunchError(f"the {kind} has not started within {_STARTS_WITHIN_S:g} s:\n{self._head.printed()}")
            time.sleep(_LOOK_EVERY_S)
        return where.read_text()

    def _task(self, **told: Any) -> str:
        workload = asdict(self.workload)
        return json.dumps(asdict(ElasticTask(loop=self.loop, folder=str(self.folder), workload=workload, told=told)))


class UnevenArm(ElasticArm):
    """``uneven run --elastic MIN:MAX``, and ``uneven run --join``.

    Args:
        elastic: without it, the same run without the option, in which nobody can join.
        sync: the policy.
    """

    loop = "uneven"

    def __init__(
        self, workload: CountedWorkload, folder: Path, *, elastic: bool = True, sync: str = "bsp", **rest: Any
    ) -> None:
        super().__init__(workload, folder, **rest)
        self._elastic, self._sync = elastic, sync
        self._meeting = f"{self.here}:{free_port()}"

    def start(self, workers: int) -> None:
        """Start so many under one launcher."""
        elastic: list[object] = []
        if self._elastic:
            elastic = ["--elastic", f"{self.least}:{self.most}", "--silence", self.silence_s]
            elastic += ["--rdzv-endpoint", self._meeting]
            elastic += ["--servers", 2] if at_own_pace(self._sync) else []
        words = (*self._again, "--nproc", workers, *elastic, "--run-dir", "run")
        self._trains(*_OURS, *words, "-m", *_SCRIPT, self._task(sync=self._sync))

    def join(self) -> Script:
        """One worker under a launcher of its own."""
        return self._trains(*_OURS, *self._again, "--join", self._meeting, "-m", *_SCRIPT, self._task(sync=self._sync))

    @property
    def _again(self) -> tuple[object, ...]:
        return ("--max-restarts", self.restarts) if self.restarts else ()


class TorchrunArm(ElasticArm):
    """torchrun with MIN:MAX machines of one worker each, which starts all workers again when one comes or goes.

    Its time-outs are the shortest that it takes in whole seconds, since the run waits for them at each restart.

    Args:
        steady: workers that nothing disturbs, under one agent and without checkpoints.
    """

    loop = "ddp"

    def __init__(self, workload: CountedWorkload, folder: Path, *, steady: bool = False, **rest: Any) -> None:
        super().__init__(workload, folder, **rest)
        self._steady = steady
        self._meeting = ""

    def start(self, workers: int) -> None:
        """One agent for each."""
        if self._steady:
            told = self._task(timeout_s=TORCHRUN_TIMEOUT_S, between_faults_s=0.0)
            self._trains(*_TORCHRUN, "--standalone", "--nproc-per-node", workers, "-m", *_SCRIPT, told)
            return
        self._meeting = self._met_at("store")
        for _ in range(workers):
            self.join()

    def join(self) -> Script:
        """One more agent."""
        settings = "is_host=0,last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3"
        told = self._task(timeout_s=TORCHRUN_TIMEOUT_S, between_faults_s=self.between_faults_s)
        return self._trains(
            *_TORCHRUN, "--nnodes", f"{self.least}:{self.most}", "--nproc-per-node", 1, "--rdzv-backend", "c10d",
            "--rdzv-id", "elastic", "--rdzv-endpoint", self._meeting, "--rdzv-conf", settings,
            "--local-addr", self.here, "--max-restarts", 1000, "--monitor-interval", 0.1, "-m", *_SCRIPT, told,
        )  # fmt: skip


class TorchFTArm(ElasticArm):
    """torchft: a lighthouse, and workers that are replica groups of one.

    Args:
        own_ddp: train through its own DDP; else with one all-reduce by hand.
    """

    loop = "torchft"

    def __init__(self, workload: CountedWorkload, folder: Path, *, own_ddp: bool = False, **rest: Any) -> None:
        super().__init__(workload, folder, **rest)
        self._own_ddp = own_ddp
        self._lighthouse = ""
        self._workers = 0
        self._slots: list[Script | None] = [None] * self.most

    def start(self, workers: int) -> None:
        """The lighthouse first."""
        self._lighthouse, self._workers = self._met_at("lighthouse", _TORCHFT), workers
        for _ in range(workers):
            self.join()

    def join(self) -> Script:
        """In the place of one that has ended, as its sampler has a fixed number of places."""
        slot = next(place for place, one in enumerate(self._slots) if one is None or one.poll() is not None)
        told = self._task(
            timeout_s=TIMEOUT_S, lighthouse=self._lighthouse, here=self.here, slot=slot, groups=self.most,
            workers=self._workers, own_ddp=self._own_ddp,
        )  # fmt: skip
        script = self._trains("-m", *_SCRIPT, told, imported=_TORCHFT)
        self._slots[slot] = script
        return script


_OURS = ("-m", "uneven_bench.forked.run", "run")
_TORCHRUN = ("-m", "uneven_bench.elastic.forked_torchrun")
_SCRIPT = ("uneven_bench.elastic.script",)
_TORCHFT = ("torchft",)


def make(name: str, workload: CountedWorkload, folder: Path, **rest: Any) -> ElasticArm:
    """The arm with this name."""
    if name == OURS:
        return UnevenArm(workload, folder, **rest)
    if name in (TORCHFT, TORCHFT_DDP):
        return TorchFTArm(workload, folder, own_ddp=name == TORCHFT_DDP, **rest)
    return TorchrunArm(workload, folder, steady=name == STEADY, **rest)


def missing(name: str) -> str:
    """Why an arm cannot be played here; "" if it can."""
    if name in (TORCHFT, TORCHFT_DDP) and importlib.util.find_spec("torchft") is None:
        return "torchft is not installed; `pip install --constraint constraints.txt './benchmarks[elastic]'` brings it"
    if name == OURS and not _has_elastic():
        return "this version of uneven has no `uneven run --elastic`"
    return ""


def versions() -> dict[str, str]:
    """Versions of what is compared."""
    names = ("torch", "torchft") if not missing(TORCHFT) else ("torch",)
    return {name: version(name) for name in names}


def _has_elastic() -> bool:
    from uneven.cli.run import run

    return "elastic" in signature(run).parameters


def free_port() -> int:
    """A port on which nobody listens now."""
    with socket.socket() as line:
        line.bind((HERE, 0))
        return int(line.getsockname()[1])
