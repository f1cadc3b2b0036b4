"""Facts about a worker and its machine that explain a slow step: read once a second, in a thread, without root.

They come from ``/proc``, the worker's control group, its own sockets (``TCP_INFO``), its GPU (NVML) and Python's
garbage collector. A source that a system does not have is left out, and so is a value of 0.
"""

from __future__ import annotations

import gc
import os
import resource
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import psutil
import torch

from uneven.policy.core.records import FactsRecord, Record
from uneven.run.measure import control_group
from uneven.run.measure.machine_load import Gpu, nvml_uuid

BUDGET = 0.005  # part of the time that the measurement may take
_EVERY_S = 1.0
_PIECE_S = 0.05
_PUNCTUAL_S = 0.002  # a timer on a busy machine is late by less
_LOOKS_AT_OTHERS = 0.1  # part of a period in which the training thread was queued; above, its competitors are listed
_BUSY_PERCENT = 10.0  # of a processor
_LOADS = 0.1  # part of a period in which it waited for data; above, the file systems of its open files are read
_NETWORK = ("nfs", "cifs", "smb", "lustre", "ceph", "glusterfs", "beegfs", "gpfs", "9p", "afs", "fuse.")


class RunQueueClock:
    """The nanoseconds that the calling thread has run, and those that it was ready to run but had no processor."""

    def __init__(self) -> None:
        path = f"/proc/self/task/{threading.get_native_id()}/schedstat"
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC) if os.path.exists(path) else -1

    def read(self) -> tuple[int, int]:
        if self._file < 0:
            return time.thread_time_ns(), 0
        ran, queued, _ = os.pread(self._file, 64, 0).split()
        return int(ran), int(queued)


class FactsThread:
    """A thread that writes a :class:`FactsRecord` every second in which the worker took a step."""

    def __init__(
        self, rank: int, clock: RunQueueClock, write: Callable[[Record], None], iteration: Callable[[], int]
    ) -> None:
        self._rank = rank
        self._clock = clock
        self._write = write
        self._iteration = iteration
        self._lock = threading.Lock()
        self._sums: dict[str, float] = {}
        self._collected_s = 0.0
        self._collecting_since = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="uneven-why", daemon=True)
        self._group = control_group.find()
        self._process = psutil.Process()
        self._sockets = Sockets()
        self._device = -1  # the number of its GPU, once it uses one
        self._gpu: Gpu | None = None
        self._others_due_s = 0.0
        self._spent_s = 0.0

    def start(self) -> None:
        gc.callbacks.append(self._collected)
        self._thread.start()

    def stop(self) -> None:
        """End the thread; the facts since its last record are written."""
        with suppress(ValueError):
            gc.callbacks.remove(self._collected)
        self._stop.set()
        self._thread.join(timeout=5.0)

    def step(self, values: Mapping[str, float]) -> None:
        """Add a measured step of the training thread."""
        with self._lock:
            sums = self._sums
            sums["steps"] = sums.get("steps", 0.0) + 1
            for name, value in values.items():
                sums[name] = sums.get(name, 0.0) + value

    def find_gpu(self) -> None:
        """Note the GPU of the training thread, which calls this."""
        if self._device < 0 and torch.cuda.is_initialized():
            self._device = torch.cuda.current_device()

    def take_spent_s(self) -> float:
        """Return the processor seconds spent since the last call."""
        spent_s, self._spent_s = self._spent_s, 0.0
        return spent_s

    def _collected(self, phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            self._collecting_since = time.perf_counter()
        else:
            self._collected_s += time.perf_counter() - self._collecting_since

    def _run(self) -> None:
        before, step, spent_s = self._counters(), self._iteration(), time.thread_time()
        due_s = time.monotonic() + _EVERY_S
        while True:
            stopped, late_s = self._sleep(due_s)
            due_s = time.monotonic() + _EVERY_S
            with self._lock:
                sums, self._sums = self._sums, {}
            now, passed = self._counters() | {"late_s": late_s}, self._iteration() - step
            if sums:
                self._record(sums, {name: value - before.get(name, 0.0) for name, value in now.items()}, passed)
            before, step = now | {"late_s": 0.0}, step + passed
            self._spent_s += time.thread_time() - spent_s
            spent_s = time.thread_time()
            if stopped:
                return

    def _record(self, sums: dict[str, float], counted: dict[str, float], passed: int) -> None:
        # Counters include the steps that were not measured; their sums are for those that were.
        part = min(1.0, sums["steps"] / max(1, passed))
        values = sums | {name: part * value for name, value in counted.items()}
        values |= self._levels() | {name: part * value for name, value in self._sockets.read().items()}
        if sums.get("data_s", 0.0) > _LOADS * sums["whole_s"]:
            values["network_files"] = float(self._on_a_network())
        others = self._others() if sums.get("queued_s", 0.0) > _LOOKS_AT_OTHERS * sums["whole_s"] else ""
        kept = {name: float(f"{value:.6g}") for name, value in values.items() if value}
        self._write(
            FactsRecord(rank=self._rank, iteration=self._iteration(), at_s=time.time(), values=kept, others=others)
        )

    def _sleep(self, until_s: float) -> tuple[bool, float]:
        """Sleep in short pieces; return whether the measurement ends, and the seconds by which pieces ended late.

        A process that is stopped from outside wakes up late; one that sleeps in its own code does not.
        """
        late_s = 0.0
        while (left_s := until_s - time.monotonic()) > 0.0:
            due_s = time.monotonic() + min(left_s, _PIECE_S)
            if self._stop.wait(due_s - time.monotonic()):
                return True, late_s
            late_s += max(0.0, time.monotonic() - due_s - _PUNCTUAL_S)
        return self._stop.is_set(), late_s

    def _counters(self) -> dict[str, float]:
        """Return sums since the start of the process, the group or the machine."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        found = {
            "clock_s": time.monotonic(),
            "collected_s": self._collected_s,
            "compiled_s": _compiled_s(),
            "major_faults": float(usage.ru_majflt),
            **_machine(),
        }
        with suppress(OSError, psutil.Error):
            io = self._process.io_counters()
            found |= {"read_bytes": float(io.read_bytes), "written_bytes": float(io.write_bytes)}
        if self._group is not None:
            with suppress(OSError):  # the group has been removed
                found["throttled_s"] = self._group.throttled_s()
        return found

    def _levels(self) -> dict[str, float]:
        found = {"memory": psutil.virtual_memory().percent / 100, **self._gpu_state()}
        if self._group is not None:
            with suppress(OSError):
                found |= {"group": float(self._group.number), "quota_cores": self._group.cores() or 0.0}
        with suppress(OSError, StopIteration, ValueError):
            lines = Path("/proc/self/status").read_text().splitlines()
            found["swapped_bytes"] = 1024.0 * int(next(one for one in lines if one.startswith("VmSwap")).split()[1])
        if (clock := psutil.cpu_freq()) is not None and clock.max:
            found["clock"] = clock.current / clock.max
        return found

    def _gpu_state(self) -> dict[str, float]:
        if self._device < 0:
            return {}
        if self._gpu is None:
            self._gpu = Gpu.open(nvml_uuid(torch.device("cuda", self._device)))
        return self._gpu.state() if self._gpu is not None else {}

    def _others(self) -> str:
        """Return the name and process number of the busiest process that is not this one."""
        started_s = time.monotonic()
        if started_s < self._others_due_s:
            return ""
        busiest: tuple[bool, float, str] = (False, 0.0, "")
        here = set(self._process.cpu_affinity()) if hasattr(self._process, "cpu_affinity") else set()
        for one in psutil.process_iter(("name",)):
            with suppress(psutil.Error):
                used = one.cpu_percent()
                if one.pid != self._process.pid and used > _BUSY_PERCENT:
                    same = bool(here) and set(one.cpu_affinity()) == here
                    busiest = max(busiest, (same, used, f"{one.info['name']} ({one.pid})"))
        now_s = time.monotonic()
        self._others_due_s = now_s + (now_s - started_s) / BUDGET  # a machine may have thousands of processes
        return busiest[2]

    def _on_a_network(self) -> bool:
        """Return whether a file that this process or its loader has open is on a network file system."""
        mounts = Path("/proc/self/mounts")
        if not mounts.is_file():
            return False
        opened = set[str]()
        for one in (self._process, *self._process.children()):
            with suppress(psutil.Error):
                opened.update(file.path for file in one.open_files())
        return any(on_a_network(path, mounts.read_text()) for path in opened)


def on_a_network(path: str, mounts: str) -> bool:
    """Return whether a file is on a network file system; ``mounts`` is the text of ``/proc/mounts``."""
    place, kind = "", ""
    for line in mounts.splitlines():
        _, point, its_kind, *_ = line.split(" ")
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(place):
            place, kind = point, its_kind
    return kind.startswith(_NETWORK)


def _machine() -> dict[str, float]:
    times = psutil.cpu_times()
    steal = getattr(times, "steal", 0.0)
    found = {"machine_busy_s": sum(times) - times.idle - getattr(times, "iowait", 0.0), "stolen_s": steal}
    with suppress(OSError, AttributeError):
        swap = psutil.swap_memory()
        found["swap_bytes"] = float(swap.sin + swap.sout)
    return found


def _compiled_s() -> float:
    """Return the seconds that torch.compile has taken, if the script uses it."""
    utils = sys.modules.get("torch._dynamo.utils")
    times: Mapping[str, list[float]] = getattr(utils, "compilation_time_metrics", {})
    return sum(times.get("_compile.compile_inner", ()))


_TCP_INFO = getattr(socket, "TCP_INFO", 11)
# Offsets in struct tcp_info of linux/tcp.h, which only ever grows at its end.
_RTT_US, _RETRANSMITTED, _ACKED, _RECEIVED, _BUSY_US = 68, 100, 120, 128, 168


class Sockets:
    """The traffic of this process's own TCP connections, from the kernel's counts."""

    def __init__(self) -> None:
        self._before: dict[tuple[object, ...], tuple[float, ...]] = {}

    def read(self) -> dict[str, float]:
        """Return the traffic since the last call, and the round trip of the busiest connection.

        ``sending_s`` are the seconds in which sent bytes were under way; ``sent_again`` counts segments."""
        now: dict[tuple[object, ...], tuple[float, ...]] = {}
        if os.path.isdir("/proc/self/fd"):
            for name in os.listdir("/proc/self/fd"):
                with suppress(OSError, ValueError):
                    if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                        self._one(int(name), now)
        sums = [0.0] * 4
        busiest = (0.0, 0.0)
        for key, values in now.items():
            old = self._before.get(key, (0.0,) * 4)
            moved = [new - past for new, past in zip(values[:4], old, strict=False)]
            sums = [total + more for total, more in zip(sums, moved, strict=True)]
            busiest = max(busiest, (moved[0], values[4]))
        self._before = now
        sent, received, busy_s, again = sums
        if not sent + received:
            return {}
        return {
            "sent_bytes": sent,
            "received_bytes": received,
            "sending_s": busy_s,
            "sent_again": again,
            "round_trip_s": busiest[1],
        }

    @staticmethod
    def _one(descriptor: int, now: dict[tuple[object, ...], tuple[float, ...]]) -> None:
        with socket.socket(fileno=os.dup(descriptor)) as line:
            if line.family not in (socket.AF_INET, socket.AF_INET6) or line.type != socket.SOCK_STREAM:
                return
            info = line.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, 256)
            key = (line.getsockname(), line.getpeername())
        if len(info) < _BUSY_US + 8:
            return
        rtt_us, again = struct.unpack_from("I", info, _RTT_US)[0], struct.unpack_from("I", info, _RETRANSMITTED)[0]
        acked, received, busy_us = (struct.unpack_from("Q", info, place)[0] for place in (_ACKED, _RECEIVED, _BUSY_US))
        now[key] = (float(acked), float(received), busy_us / 1e6, float(again), rtt_us / 1e6)
