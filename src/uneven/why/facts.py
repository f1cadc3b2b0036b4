"""Facts about a worker and its machine that explain a slow step: read once a second, in a thread, without root.

They come from ``/proc``, the worker's control group, its own sockets (``TCP_INFO``), its GPU (NVML) and Python's
garbage collector. A source that a system does not have is left out, and so is a value of 0.
"""

import gc
import os
import socket
import struct
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import psutil
import torch

from uneven.policy.core.records import FactsRecord, Record
from uneven.run.measure import control_group
from uneven.run.measure.machine_load import Gpu, nvml_uuid
from uneven.runtime.system import borrowed, major_faults

BUDGET = 0.005  # part of the time that the measurement may take
_EVERY_S = 1.0
_LONG = 5.0  # times the usual step; see ``STILL_S``
STILL_S = 10.0  # without the end of a step; then the place of the training thread is recorded
_PIECE_S = 0.05
_PUNCTUAL_S = 0.002  # a timer on a busy machine is late by less
_LOOKS_AT_OTHERS = 0.1  # part of a period in which the training thread was queued; above, its competitors are listed
_BUSY_PERCENT = 10.0  # of a processor
_LOADS = 0.1  # part of a period in which it waited for data; above, the file systems of its open files are read
_GROUPS = Path("/proc/self/cgroup")
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
        self._trains = threading.get_ident()
        self._groups = ""  # as the kernel lists the groups of this process
        self._group: control_group.ControlGroup | None = None
        self._throttled_s = self._before_group_s = 0.0  # in all groups so far, and before it entered this one
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
        stepped_s, still_due_s, hangs = time.monotonic(), STILL_S, False
        due_s = stepped_s + _EVERY_S
        while True:
            stopped, late_s = self._sleep(due_s)
            due_s = time.monotonic() + _EVERY_S
            with self._lock:
                sums, self._sums = self._sums, {}
            now, passed = self._counters() | {"late_s": late_s}, self._iteration() - step
            failed = stopped and hasattr(sys, "last_type")
            if passed and not failed:
                stepped_s, hangs = time.monotonic(), False
                still_due_s = max(STILL_S, _LONG * sums["whole_s"] / sums["steps"] if sums else 0.0)
            elif not stopped and (still_s := time.monotonic() - stepped_s) >= still_due_s:
                still_due_s *= 2  # so that a hanging night writes a few lines
                hangs = True
                self._record_still(still_s)
            if sums and not (failed and hangs):  # the end of the measurement ends the step before
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
        traffic, queue_s, link = self._sockets.read()
        values |= self._levels() | {name: part * value for name, value in traffic.items()} | {"queue_s": queue_s}
        if sums.get("data_s", 0.0) > _LOADS * sums["whole_s"]:
            values["network_files"] = float(self._on_a_network())
        others = self._others() if sums.get("queued_s", 0.0) > _LOOKS_AT_OTHERS * sums["whole_s"] else ""
        kept = {name: float(f"{value:.6g}") for name, value in values.items() if value}
        self._write_facts(kept, others=others, link=link)

    def _record_still(self, still_s: float) -> None:
        where, meets = place(sys._current_frames()[self._trains])
        values = {"still_s": round(still_s, 1), "meets": float(meets)}
        self._write_facts(values, where=where)

    def _write_facts(self, values: dict[str, float], **texts: str) -> None:
        iteration = self._iteration()
        self._write(FactsRecord(rank=self._rank, iteration=iteration, at_s=time.time(), values=values, **texts))

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
        found = {
            "clock_s": time.monotonic(),
            "collected_s": self._collected_s,
            "compiled_s": _compiled_s(),
            "major_faults": float(major_faults()),
            **_machine(),
        }
        with suppress(OSError, psutil.Error, AttributeError):  # psutil has none on macOS
            io = self._process.io_counters()
            found |= {"read_bytes": float(io.read_bytes), "written_bytes": float(io.write_bytes)}
        with suppress(OSError):  # the group has been removed
            found["throttled_s"] = self._throttled()
        return found

    def _throttled(self) -> float:
        """Return the seconds for which quotas have stopped this process. A script may move it to another group."""
        groups = _GROUPS.read_text() if _GROUPS.is_file() else ""
        if groups != self._groups:
            self._groups, self._group = groups, control_group.find()
            self._before_group_s = self._throttled_s - (self._group.throttled_s() if self._group else 0.0)
        if self._group is not None:
            self._throttled_s = self._before_group_s + self._group.throttled_s()
        return self._throttled_s

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


def place(frame: FrameType) -> tuple[str, bool]:
    """Return the function and line of the script that a thread is in, and whether it waits there for other workers."""
    frames = [frame]
    while (outer := frames[-1].f_back) is not None:
        frames.append(outer)
    frames = [one for one in frames if not one.f_code.co_filename.startswith(_OURS)] or frames
    own = [one for one in frames if not one.f_code.co_filename.startswith(_INSTALLED)] or frames
    code = own[0].f_code
    meets = frames[0].f_code.co_filename.startswith(_MEETS)
    return f"{code.co_name} ({os.path.basename(code.co_filename)}:{own[0].f_lineno})", meets


_TORCH = os.path.dirname(torch.__file__) + os.sep
_OURS = os.path.dirname(__file__) + os.sep
_UNEVEN = os.path.dirname(os.path.dirname(__file__)) + os.sep
_LIBRARIES = (sysconfig.get_path(one) + os.sep for one in ("stdlib", "platstdlib", "purelib", "platlib"))
_INSTALLED = ("<", _TORCH, _UNEVEN, *_LIBRARIES)
# Files whose calls wait for other workers. DDP waits within the backward pass.
_MEETS = (
    *(_TORCH + os.path.join(*one, "") for one in (("distributed",), ("autograd",), ("nn", "parallel"))),
    os.path.join(_UNEVEN, "run", ""),
)


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


_Ends = tuple[tuple[Any, ...], tuple[Any, ...]]  # address and port on both sides of a connection
_TCP_INFO = getattr(socket, "TCP_INFO", 11)
# Offsets in struct tcp_info of linux/tcp.h, which only ever grows at its end.
_RTT_US, _RETRANSMITTED, _ACKED, _RECEIVED, _LEAST_RTT_US, _BUSY_US = 68, 100, 120, 128, 148, 168


class Sockets:
    """The traffic of this process's own TCP connections, from the kernel's counts."""

    def __init__(self) -> None:
        self._before: dict[_Ends, tuple[float, ...]] = {}

    def read(self) -> tuple[dict[str, float], float, str]:
        """Return the traffic since the last call; of the busiest connection the seconds in queues, and its ends.

        ``sending_s`` are the seconds in which sent bytes were under way; ``sent_again`` counts segments. A queue grows
        in front of a slow link only: its seconds are those by which a round trip exceeds the shortest one.
        """
        now: dict[_Ends, tuple[float, ...]] = {}
        if os.path.isdir("/proc/self/fd"):
            for name in os.listdir("/proc/self/fd"):
                with suppress(OSError, ValueError):
                    if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                        self._one(int(name), now)
        sums = [0.0] * 4
        busiest = (0.0, 0.0, "")
        for key, values in now.items():
            old = self._before.get(key, (0.0,) * 4)
            moved = [new - past for new, past in zip(values[:4], old, strict=False)]
            sums = [total + more for total, more in zip(sums, moved, strict=True)]
            busiest = max(busiest, (moved[0], values[4], f"{key[0][0]} {key[1][0]}"))
        self._before = now
        sent, received, busy_s, again = sums
        if not sent + received:
            return {}, 0.0, ""
        found = {"sent_bytes": sent, "received_bytes": received, "sending_s": busy_s, "sent_again": again}
        return found, busiest[1], busiest[2]

    @staticmethod
    def _one(descriptor: int, now: dict[_Ends, tuple[float, ...]]) -> None:
        with borrowed(descriptor) as line:
            stream = line.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE) == socket.SOCK_STREAM
            if line.family not in (socket.AF_INET, socket.AF_INET6) or not stream:
                return
            info = line.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, 256)
            key = (line.getsockname(), line.getpeername())
        if len(info) < _BUSY_US + 8:
            return
        counted = (struct.unpack_from("I", info, place)[0] for place in (_RTT_US, _LEAST_RTT_US, _RETRANSMITTED))
        rtt_us, least_rtt_us, again = counted
        acked, received, busy_us = (struct.unpack_from("Q", info, place)[0] for place in (_ACKED, _RECEIVED, _BUSY_US))
        now[key] = (float(acked), float(received), busy_us / 1e6, float(again), (rtt_us - least_rtt_us) / 1e6)
