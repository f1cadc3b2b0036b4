"""The systems that ``uneven bench elastic`` compares, each with its way to start workers and to add one."""

import importlib.util
import json
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

from uneven.cluster.emulate.ports import quiet_ports
from uneven.cluster.emulate.pure.names import INTERFACE
from uneven.errors import LaunchError
from uneven_bench.elastic.cases import OURS, STEADY, TORCHFT, TORCHFT_DDP, at_own_pace
from uneven_bench.elastic.machines import Machines
from uneven_bench.elastic.worker import ElasticTask
from uneven_bench.elastic.workload import CountedWorkload
from uneven_bench.forked.scripts import Script
from uneven_bench.harness.marked import marked_script
from uneven_bench.harness.witness import await_notes

TIMEOUT_S = 5.0  # the time-out of gloo under torchft, as in its own example of DDP
TORCHRUN_TIMEOUT_S = 30.0  # the time-out of gloo under torchrun
HERE = "127.0.0.1"
_STARTS_WITHIN_S = 60.0
_IMPORTED = ("torch.distributed.run", "uneven_bench.elastic.script")


@dataclass(kw_only=True)
class ElasticArm(ABC):
    """A system under test: it starts workers of a workload in a folder, and one more on demand."""

    loop: ClassVar[str] = ""

    workload: CountedWorkload
    folder: Path  # empty; for all files of the run
    least: int  # limits of the number of workers
    most: int
    between_faults_s: float  # mean time between faults, for systems that save checkpoints
    silence_s: float = 10.0  # the longest silence of a worker of ours
    restarts: int = 0  # workers that our launcher starts again if they have not left
    # the first start is on the first machine, each newcomer on another one; without them, all run on this one
    machines: Machines | None = None
    scripts: list[Script] = field(default_factory=list)
    head: Script | None = None  # the meeting point of the workers

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
        if self.head is not None:
            self.head.close()
            self.head = None

    def close(self) -> None:
        """End all processes that it has started."""
        for script in self.scripts:
            script.close()
        self.close_head()

    def said(self) -> str:
        return "\n".join(script.printed() for script in self.scripts)

    def _run(self, *words: object, imported: tuple[str, ...] = ()) -> Script:
        # Without it torchrun's restart over gloo hangs or fails after a worker was killed: survivors dial ports of the
        # life before.
        more = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        if self.machines is not None:
            more["GLOO_SOCKET_IFNAME"] = INTERFACE
            words = (*self.machines.words(self.place), *words[1:])  # the words of a machine bring their own -m
        return marked_script(words, self.folder, self.folder, *_IMPORTED, *imported, **more)

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
        self.head = self._run("-m", "uneven_bench.elastic.head", kind, where, self.here, imported=imported)
        if not await_notes([where], _STARTS_WITHIN_S):
            raise LaunchError(f"the {kind} has not started within {_STARTS_WITHIN_S:g} s:\n{self.head.printed()}")
        return where.read_text()

    def _task(self, **told: Any) -> str:
        workload = asdict(self.workload)
        return json.dumps(asdict(ElasticTask(loop=self.loop, folder=str(self.folder), workload=workload, told=told)))


@dataclass(kw_only=True)
class UnevenArm(ElasticArm):
    """``uneven run --elastic MIN:MAX``, and ``uneven run --join``. ``elastic``: False runs without the option; then no
    worker can join; ``sync``: the policy."""

    loop: ClassVar[str] = "uneven"

    elastic: bool = True
    sync: str = "bsp"

    def __post_init__(self) -> None:
        self._meeting = f"{self.here}:{quiet_ports(1)[0]}"

    def start(self, workers: int) -> None:
        elastic: list[object] = []
        if self.elastic:
            elastic = ["--elastic", f"{self.least}:{self.most}", "--silence", self.silence_s]
            elastic += ["--rdzv-endpoint", self._meeting]
            elastic += ["--servers", 2] if at_own_pace(self.sync) else []
        words = (*self._again, "--nproc", workers, *elastic, "--run-dir", "run")
        self._trains(*_OURS, *words, "-m", *_SCRIPT, self._task(sync=self.sync))

    def join(self) -> Script:
        return self._trains(*_OURS, *self._again, "--join", self._meeting, "-m", *_SCRIPT, self._task(sync=self.sync))

    @property
    def _again(self) -> tuple[object, ...]:
        return ("--max-restarts", self.restarts) if self.restarts else ()


@dataclass(kw_only=True)
class TorchrunArm(ElasticArm):
    """torchrun with MIN:MAX machines of one worker each, which starts all workers again when one comes or goes.
    ``steady``: workers without faults, under one agent and without checkpoints."""

    loop: ClassVar[str] = "ddp"

    steady: bool = False

    def start(self, workers: int) -> None:
        if self.steady:
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


@dataclass(kw_only=True)
class TorchFTArm(ElasticArm):
    """torchft: a lighthouse, and workers that are replica groups of one. ``own_ddp``: train through its own DDP; else
    with one all-reduce by hand."""

    loop: ClassVar[str] = "torchft"

    own_ddp: bool = False

    def __post_init__(self) -> None:
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
            own_ddp=self.own_ddp,
        )
        script = self._trains("-m", *_SCRIPT, told, imported=_TORCHFT)
        self._slots[slot] = script
        return script


_OURS = ("-m", "uneven_bench.forked.run", "run")
_TORCHRUN = ("-m", "uneven_bench.forked.run", "torchrun")
_SCRIPT = ("uneven_bench.elastic.script",)
_TORCHFT = ("torchft",)


def make(name: str, **given: Any) -> ElasticArm:
    """Make an arm. ``given``: its fields."""
    if name == OURS:
        return UnevenArm(**given)
    if name in (TORCHFT, TORCHFT_DDP):
        return TorchFTArm(own_ddp=name == TORCHFT_DDP, **given)
    return TorchrunArm(steady=name == STEADY, **given)


def missing(name: str) -> str:
    """Return the reason why an arm cannot run here; "" if it can."""
    if name in (TORCHFT, TORCHFT_DDP) and importlib.util.find_spec("torchft") is None:
        return "torchft is not installed; `pip install --constraint constraints.txt './benchmarks[elastic]'` brings it"
    return ""


def versions() -> dict[str, str]:
    names = ("torch", "torchft") if not missing(TORCHFT) else ("torch",)
    return {name: version(name) for name in names}
