"""A worker of a run of ``uneven bench why``: an ordinary loop, a disturbance, and the measurement.

A step computes for about 8 ms and sleeps for 16 ms, as a host does while its device computes. So three workers have
room on two cores, as on machines of their own.
"""

import gc
import mmap
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

from uneven.cluster.emulate import kernel
from uneven.testing.ranks import RankContext
from uneven.why.start import attach

SAMPLES, WIDTH, LENGTH = 8, 192, 32
_SLEPT_S = 0.016
_BUSY = "while True: pass"


class _Sequences(Dataset[torch.Tensor]):
    """Sequences; ``before`` runs before a sample is returned."""

    def __init__(self, count: int, length: int, before: Callable[[], None]) -> None:
        self._count = count
        self._length = length
        self._before = before

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> torch.Tensor:
        self._before()
        return torch.randn(self._length, WIDTH, generator=torch.Generator().manual_seed(index))


class _WhyModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.ReLU(), nn.Linear(4 * WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        )
        self.during: Callable[[torch.Tensor], None] = lambda _: None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.during(x)
        return self.layers(x)


class _Disturbance:
    """What one worker does differently."""

    def __init__(self, name: str, severity: float, stack: ExitStack) -> None:
        self.name = name
        self.severity = severity
        self._stack = stack
        self.length = LENGTH
        self.before_sample: Callable[[], None] = lambda: None
        self.in_forward: Callable[[], None] = lambda: None
        self.after_step: Callable[[int], None] = lambda _: None

    def begin(self) -> None:
        getattr(self, "_" + self.name.replace("-", "_"), lambda: None)()

    def _between(self, least: float, most: float) -> float:
        return least + (most - least) * self.severity

    def _quota(self) -> None:
        group = Path(f"/sys/fs/cgroup/cpu/uneven-why-{os.getpid()}")
        group.mkdir()
        (group / "cpu.cfs_quota_us").write_text(str(int(100_000 * self._between(0.25, 0.1))))
        (group / "cgroup.procs").write_text(str(os.getpid()))
        self._stack.callback(group.rmdir)
        self._stack.callback(lambda: (group.parent / "cgroup.procs").write_text(str(os.getpid())))

    def _stopped(self) -> None:
        stop = (
            "import os, signal, time\n"
            "while os.getppid() == {0}:\n"
            " os.kill({0}, signal.SIGSTOP); time.sleep({1}); os.kill({0}, signal.SIGCONT); time.sleep({2})\n"
        ).format(os.getpid(), 0.08 * self._between(0.5, 1.0), 0.08 * self._between(0.5, 0.2))
        self._child([sys.executable, "-S", "-c", stop])
        self._stack.callback(lambda: os.kill(os.getpid(), signal.SIGCONT))

    def _contention(self) -> None:
        allowed = os.sched_getaffinity(0)
        core = {min(allowed)}
        os.sched_setaffinity(0, core)
        self._stack.callback(lambda: os.sched_setaffinity(0, allowed))
        for _ in range(2 + round(2 * self.severity)):
            child = self._child([sys.executable, "-S", "-c", _BUSY])
            os.sched_setaffinity(child.pid, core)

    def _child(self, words: list[str]) -> subprocess.Popen[bytes]:
        child = subprocess.Popen(words)

        def end() -> None:
            child.kill()
            child.wait()

        self._stack.callback(end)
        return child

    def _data_wait(self) -> None:
        seconds = self._between(0.02, 0.1) / SAMPLES
        self.before_sample = lambda: time.sleep(seconds)

    def _data_cpu(self) -> None:
        seconds = self._between(0.015, 0.05) / SAMPLES
        self.before_sample = lambda: compute(seconds)

    def _data_disk(self) -> None:
        file = self._file(64_000_000)
        size = int(self._between(3e6, 8e6))

        def read() -> None:
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            os.pread(file, size, 0)

        self.before_sample = read

    def _file(self, size: int) -> int:
        file = tempfile.NamedTemporaryFile(dir="/var/tmp")  # noqa: SIM115 (the stack closes it)
        self._stack.callback(file.close)
        for _ in range(size // 1_000_000):
            file.write(os.urandom(1_000_000))
        file.flush()
        os.fsync(file.fileno())
        return file.fileno()

    def _batch(self) -> None:
        self.length = round(LENGTH * self._between(2.0, 4.0))

    def _blocked(self) -> None:
        seconds = self._between(0.015, 0.08)
        self.in_forward = lambda: time.sleep(seconds)

    def _collection(self) -> None:
        heap = [[index] for index in range(int(self._between(3e5, 9e5)))]
        self._stack.callback(heap.clear)

        def collect() -> None:
            gc.collect()

        self.in_forward = collect

    def _compilation(self) -> None:
        torch._dynamo.config.recompile_limit = 10_000
        torch._dynamo.config.accumulated_recompile_limit = 10_000
        count = 0

        def compiled() -> None:
            nonlocal count
            count += 1
            layers = 4 + round(20 * self.severity)

            @torch.compile(backend="eager", dynamic=False)
            def chain(x: torch.Tensor) -> torch.Tensor:
                for _ in range(layers):
                    x = torch.relu(x) + 1
                return x

            chain(torch.ones(count + 1))

        self.in_forward = compiled

    def _memory(self) -> None:
        size = int(self._between(12e6, 40e6))
        file = self._file(48_000_000)
        pages = mmap.mmap(file, 0, prot=mmap.PROT_READ)
        pages.madvise(mmap.MADV_RANDOM)

        def touch() -> None:
            pages.madvise(mmap.MADV_DONTNEED)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            for at in range(0, size, 65536):
                pages[at]

        self.in_forward = touch

    def _processor(self) -> None:
        seconds = self._between(0.012, 0.04)
        self.in_forward = lambda: compute(seconds)

    def _checkpoint(self) -> None:
        seconds, state = self._between(0.3, 0.9), {"weights": torch.zeros(1_000_000)}
        file = tempfile.NamedTemporaryFile(dir="/var/tmp")  # noqa: SIM115 (the stack closes it)
        self._stack.callback(file.close)

        def save() -> None:
            end_s = time.perf_counter() + seconds
            while time.perf_counter() < end_s:
                torch.save(state, file.name)
                os.fsync(file.fileno())

        self._every_twenty(save)

    def _evaluation(self) -> None:
        seconds = self._between(0.3, 0.9) / 20
        data = _Sequences(20 * SAMPLES, LENGTH, lambda: None)

        @torch.no_grad()
        def evaluate() -> None:
            for _ in DataLoader(data, batch_size=SAMPLES):
                compute(seconds)

        self._every_twenty(evaluate)

    def _every_twenty(self, action: Callable[[], None]) -> None:
        self.after_step = lambda step: action() if step % 20 == 19 else None


def compute(seconds: float) -> None:
    """Take processor time."""
    end_s = time.thread_time() + seconds
    x = torch.ones(96, 96)
    while time.thread_time() < end_s:
        x @ x


def train(me: RankContext, case: dict[str, Any], run: str, networks: list[list[str]] | None = None) -> float:
    """Train; return the seconds of the usual step. ``networks``: a namespace for each worker, if links are limited."""
    if networks:
        _join(me, networks[me.rank])
    with ExitStack() as stack:
        disturbed = me.rank == case["rank"]
        torch.manual_seed(case["seed"])
        disturbance = _Disturbance(case["disturbance"] if disturbed else "none", case["severity"], stack)
        disturbance.begin()
        probe = attach(run)
        stack.callback(probe.close)
        return _LOOPS[case["kind"]](case, disturbance)


def _batches(case: dict[str, Any], disturbance: _Disturbance) -> Iterator[torch.Tensor]:
    data = _Sequences(case["steps"] * SAMPLES, disturbance.length, disturbance.before_sample)
    return iter(DataLoader(data, batch_size=SAMPLES))


def _model(disturbance: _Disturbance) -> _WhyModel:
    model = _WhyModel()

    def during(x: torch.Tensor) -> None:
        time.sleep(_SLEPT_S * x.shape[1] / LENGTH)
        compute(0.006 * x.shape[1] / LENGTH)
        disturbance.in_forward()

    model.during = during
    return model


def _with_optimizer(model: nn.Module, case: dict[str, Any], disturbance: _Disturbance) -> float:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    ends_s = [time.perf_counter()]
    for step, x in enumerate(_batches(case, disturbance)):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        disturbance.after_step(step)
        ends_s.append(time.perf_counter())
    return _usual(ends_s)


def _ddp(case: dict[str, Any], disturbance: _Disturbance) -> float:
    return _with_optimizer(nn.parallel.DistributedDataParallel(_model(disturbance)), case, disturbance)


def _fsdp2(case: dict[str, Any], disturbance: _Disturbance) -> float:
    from torch.distributed.fsdp import fully_shard

    warnings.filterwarnings("ignore", "FSDP2-wrapped module", UserWarning)  # about in-place operations on a view
    model = _model(disturbance)
    for layer in model.layers:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(model)
    return _with_optimizer(model, case, disturbance)


def _plain(case: dict[str, Any], disturbance: _Disturbance) -> float:
    model = _model(disturbance)
    ends_s = [time.perf_counter()]
    for step, x in enumerate(_batches(case, disturbance)):
        model(x).square().mean().backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad)
            with torch.no_grad():
                parameter.sub_(parameter.grad, alpha=1e-3 / dist.get_world_size())
            parameter.grad = None
        disturbance.after_step(step)
        ends_s.append(time.perf_counter())
    return _usual(ends_s)


_LOOPS = {"ddp": _ddp, "fsdp2": _fsdp2, "plain": _plain}


def _usual(ends_s: list[float]) -> float:
    durations_s = sorted(later - earlier for earlier, later in pairwise(ends_s))
    return durations_s[len(durations_s) // 2]


def _join(me: RankContext, network: list[str]) -> None:
    """Enter this worker's network namespace, and join the others there; ``network``: its file, rank 0's address."""
    namespace, address = network
    descriptor = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    kernel.enter(descriptor, kernel.NEW_NETWORK)
    os.close(descriptor)
    os.environ["GLOO_SOCKET_IFNAME"] = next(name for _, name in socket.if_nameindex() if name != "lo")
    del os.environ["TORCHELASTIC_USE_AGENT_STORE"]  # the store of the fork server is in another namespace
    dist.init_process_group("gloo", init_method=f"tcp://{address}:29500", rank=me.rank, world_size=me.size)


def overhead(me: RankContext, step_s: float, pairs: int) -> list[tuple[float, float]]:
    """Train with the measurement on and off in turns; return of each pair the ratios of processor and wall time.

    Processor time is the training thread's. A step takes it ``step_s`` and the time of a small model, so on a busy
    machine it is the measure: other processes do not change it.
    """
    steps = max(16, round(1.0 / step_s))
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = _Sequences(10**9, 4, lambda: None)

    def block() -> tuple[float, float]:
        loader = iter(DataLoader(data, batch_size=4))
        dist.barrier()
        started_s, before_s = time.perf_counter(), time.thread_time()
        for _ in range(steps):
            x = next(loader)[..., :64]
            compute(step_s)
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        dist.barrier()
        return time.thread_time() - before_s, time.perf_counter() - started_s

    block()
    ratios = []
    for number in range(pairs):
        with tempfile.TemporaryDirectory() as folder:
            took_s = {}
            for measured in (True, False) if number % 2 else (False, True):
                probe = attach(folder) if measured else None
                took_s[measured] = block()
                if probe is not None:
                    probe.close()
        processor, wall = (on / off for on, off in zip(took_s[True], took_s[False], strict=True))
        ratios.append((processor, wall))
    return ratios
