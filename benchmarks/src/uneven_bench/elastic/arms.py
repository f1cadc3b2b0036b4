"""The systems that ``uneven bench elastic`` compares, each with its way to start workers and to add one."""

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

TIMEOUT_S = 5.0  # the time-out of gloo under torchft, as in its own example of DDP
TORCHRUN_TIMEOUT_S = 30.0  # the time-out of gloo under torchrun
HERE = "127.0.0.1"
_STARTS_WITHIN_S = 60.0
_LOOK_EVERY_S = 0.01
_IMPORTED = (
    *(
        "uneven.cli.run",
        "uneven.runtime.launch.fixed_workers",
        "torch.distributed.run",
        "uneven_bench.elastic.script",
        "rich.console",
    ),
)
"""Modules that each launcher or worker would import; the forked parent imports them once."""


class ElasticArm(ABC):
    """A system under test: it starts workers of a workload in a folder, and one more on demand.

    Args:
        folder: empty; for all files of the run.
        least, most: limits of the number of workers.
        between_faults_s: mean time between faults, for systems that save checkpoints.
        silence_s: the longest silence of a worker of ours.
        restarts: workers that our launcher starts again if they have not left.
        machines: the first start is on the first machine, each newcomer on another one. Without them, all run on this
            one.
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
        self.least = least
        self.most = most
        self.between_faults_s = between_faults_s
        self.silence_s = silence_s
        self.restarts = restarts
        self.scripts: list[Script] = []
        self.machines = machines
        self._head: Script | None = None

    @property
    def place(self) -> int:
        """The machine of the next start."""
        return len(self.scripts)

    def place_of(self, pid: int, parent: int) -> int:
        """Return the machine of a worker and its parent."""
        return next(place for place, script in enumerate(self.scripts) if script.pid in (pid, parent))

    @abstractmethod
    def start(self, workers: int) -> None:
        """Start ``workers`` workers."""

    @abstractmethod
    def join(self) -> Script:
        """Start one more worker, and return its launcher's process or its own."""

    @property
    def running(self) -> bool:
        """True if a process that it has started can still train."""
        return any(script.poll() is None for script in self.scripts)

    def close_head(self) -> None:
        """End the meeting point of the workers, which does not end with them."""
        if self._head is not None:
            self._head.close()
            self._head = None

    def close(self) -> None:
        """End all processes that it has started."""
        for script in self.scripts:
            script.close()
        self.close_head()

    def said(self) -> str:
        return "\n".join(script.printed() for script in self.scripts)

    def _run(self, *words: object, imported: tuple[str, ...] = ()) -> Script:
        environment = {
            # The bench itself may run under a launcher, whose variables would mislead the workers.
            **{key: value for key, value in os.environ.items() if not key.startswith(("UNEVEN_", "TORCHELASTIC_"))},
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "OMP_NUM_THREADS": "1",
            "TMPDIR": str(self.folder),
            # Without it torchrun's restart over gloo hangs or fails after a worker was killed: survivors dial ports
            # of the life before.
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
            MARK: str(self.folder),
        }
        if self.machines is not None:
            environment["GLOO_SOCKET_IFNAME"] = INTERFACE
            words = (*self.machines.words(self.place), *words[1:])  # the words of a machine bring their own -m
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
        """Start the meeting point of the workers, and return its address."""
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
    """``uneven run --elastic MIN:MAX``, and ``uneven run --join``. ``elastic``: False runs without the option; then no
    worker can join; ``sync``: the policy."""

    loop = "uneven"

    def __init__(
        self, workload: CountedWorkload, folder: Path, *, elastic: bool = True, sync: str = "bsp", **rest: Any
    ) -> None:
        super().__init__(workload, folder, **rest)
        self._elastic = elastic
        self._sync = sync
        self._meeting = f"{self.here}:{free_port()}"

    def start(self, workers: int) -> None:
        elastic: list[object] = []
        if self._elastic:
            elastic = ["--elastic", f"{self.least}:{self.most}", "--silence", self.silence_s]
            elastic += ["--rdzv-endpoint", self._meeting]
            elastic += ["--servers", 2] if at_own_pace(self._sync) else []
        words = (*self._again, "--nproc", workers, *elastic, "--run-dir", "run")
        self._trains(*_OURS, *words, "-m", *_SCRIPT, self._task(sync=self._sync))

    def join(self) -> Script:
        return self._trains(*_OURS, *self._again, "--join", self._meeting, "-m", *_SCRIPT, self._task(sync=self._sync))

    @property
    def _again(self) -> tuple[object, ...]:
        return ("--max-restarts", self.restarts) if self.restarts else ()


class TorchrunArm(ElasticArm):
    """torchrun with MIN:MAX machines of one worker each, which starts all workers again when one comes or goes.
    ``steady``: workers without faults, under one agent and without checkpoints."""

    loop = "ddp"

    def __init__(self, workload: CountedWorkload, folder: Path, *, steady: bool = False, **rest: Any) -> None:
        super().__init__(workload, folder, **rest)
        self._steady = steady
        self._meeting = ""

    def start(self, workers: int) -> None:
        if self._steady:
            told = self._task(timeout_s=TORCHRUN_TIMEOUT_S, between_faults_s=0.0)
            self._trains(*_TORCHRUN, "--standalone", "--nproc-per-node", workers, "-m", *_SCRIPT, told)
            return
        self._meeting = self._met_at("store")
        for _ in range(workers):
            self.join()

    def join(self) -> Script:
        # The shortest time-outs in whole seconds: the run waits for them at each restart.
        settings = "is_host=0,last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3"
        told = self._task(timeout_s=TORCHRUN_TIMEOUT_S, between_faults_s=self.between_faults_s)
        return self._trains(
            *_TORCHRUN, "--nnodes", f"{self.least}:{self.most}", "--nproc-per-node", 1, "--rdzv-backend", "c10d",
            "--rdzv-id", "elastic", "--rdzv-endpoint", self._meeting, "--rdzv-conf", settings,
            "--local-addr", self.here, "--max-restarts", 1000, "--monitor-interval", 0.1, "-m", *_SCRIPT, told,
        )  # fmt: skip


class TorchFTArm(ElasticArm):
    """torchft: a lighthouse, and workers that are replica groups of one. ``own_ddp``: train through its own DDP; else
    with one all-reduce by hand."""

    loop = "torchft"

    def __init__(self, workload: CountedWorkload, folder: Path, *, own_ddp: bool = False, **rest: Any) -> None:
        super().__init__(workload, folder, **rest)
        self._own_ddp = own_ddp
        self._lighthouse = ""
        self._workers = 0
        self._slots: list[Script | None] = [None] * self.most

    def start(self, workers: int) -> None:
        self._lighthouse, self._workers = self._met_at("lighthouse", _TORCHFT), workers
        for _ in range(workers):
            self.join()

    def join(self) -> Script:
        # torchft's sampler has a fixed number of places, so a newcomer takes that of a worker that has ended.
        slot = next(place for place, one in enumerate(self._slots) if one is None or one.poll() is not None)
        told = self._task(
            timeout_s=TIMEOUT_S,
            lighthouse=self._lighthouse,
            here=self.here,
            slot=slot,
            groups=self.most,
            workers=self._workers,
            own_ddp=self._own_ddp,
        )
        script = self._trains("-m", *_SCRIPT, told, imported=_TORCHFT)
        self._slots[slot] = script
        return script


_OURS = ("-m", "uneven_bench.forked.run", "run")
_TORCHRUN = ("-m", "uneven_bench.elastic.forked_torchrun")
_SCRIPT = ("uneven_bench.elastic.script",)
_TORCHFT = ("torchft",)


def make(name: str, workload: CountedWorkload, folder: Path, **rest: Any) -> ElasticArm:
    if name == OURS:
        return UnevenArm(workload, folder, **rest)
    if name in (TORCHFT, TORCHFT_DDP):
        return TorchFTArm(workload, folder, own_ddp=name == TORCHFT_DDP, **rest)
    return TorchrunArm(workload, folder, steady=name == STEADY, **rest)


def missing(name: str) -> str:
    """Return the reason why an arm cannot run here; "" if it can."""
    if name in (TORCHFT, TORCHFT_DDP) and importlib.util.find_spec("torchft") is None:
        return "torchft is not installed; `pip install --constraint constraints.txt './benchmarks[elastic]'` brings it"
    if name == OURS and not _has_elastic():
        return "this version of uneven has no `uneven run --elastic`"
    return ""


def versions() -> dict[str, str]:
    names = ("torch", "torchft") if not missing(TORCHFT) else ("torch",)
    return {name: version(name) for name in names}


def _has_elastic() -> bool:
    from uneven.cli.run import run

    return "elastic" in signature(run).parameters


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as line:
        line.bind((HERE, 0))
        return int(line.getsockname()[1])
