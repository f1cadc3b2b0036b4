"""Facts about a worker and its machine that explain a slow step: read once a second, in a thread, without root.

They come from ``/proc``, the worker's control group, its own sockets (``TCP_INFO``) and Python's garbage collector. A
source that a system does not have is left out.
"""

from __future__ import annotations

import gc
import os
import resource
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from uneven.policy.core.records import FactsRecord, Record

_EVERY_S = 1.0
_PIECE_S = 0.05
_PUNCTUAL_S = 0.002  # a timer on a busy machine is late by less
_LOOKS_AT_OTHERS = 0.1  # part of a period in which the training thread was queued; above, its competitors are listed
_BUSY_PERCENT = 10.0  # of a processor
_NS = 1e9


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
        self._sums = dict.fromkeys(("steps", "whole_s", "exchange_s", "ran_s", "queued_s", "elements"), 0.0)
        self._collected_s = 0.0
        self._collecting_since = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="uneven-why", daemon=True)
        self._group = _ControlGroup.find()
        self._process = psutil.Process()
        self._sockets = Sockets()

    def start(self) -> None:
        gc.callbacks.append(self._collected)
        self._thread.start()

    def stop(self) -> None:
        """End the thread; the facts since its last record are written."""
        with suppress(ValueError):
            gc.callbacks.remove(self._collected)
        self._stop.set()
        self._thread.join(timeout=5.0)

    def step(self, whole_s: float, exchange_s: float, ran_s: float, queued_s: float, elements: int) -> None:
        """Add a step of the training thread, as measured between two optimizer steps."""
        with self._lock:
            sums = self._sums
            sums["steps"] += 1
            sums["whole_s"] += whole_s
            sums["exchange_s"] += exchange_s
            sums["ran_s"] += ran_s
            sums["queued_s"] += queued_s
            sums["elements"] += elements

    def _collected(self, phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            self._collecting_since = time.perf_counter()
        else:
            self._collected_s += time.perf_counter() - self._collecting_since

    def _run(self) -> None:
        before = self._counters()
        due_s = time.monotonic() + _EVERY_S
        while True:
            stopped, late_s = self._sleep(due_s)
            due_s = time.monotonic() + _EVERY_S
            with self._lock:
                sums, self._sums = self._sums, dict.fromkeys(self._sums, 0.0)
            now = self._counters()
            if sums["steps"]:
                values = sums | {name: now[name] - before[name] for name in now if name in before}
                values["late_s"] = late_s
                values |= self._levels() | self._sockets.read()
                others = self._others() if sums["queued_s"] > _LOOKS_AT_OTHERS * sums["whole_s"] else ""
                self._write(
                    FactsRecord(
                        rank=self._rank, iteration=self._iteration(), at_s=time.time(), values=values, others=others
                    )
                )
            before = now
            if stopped:
                return

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
            "major_faults": float(usage.ru_majflt),
            **self._group.throttled(),
            **_machine(),
            **_compiled(),
        }
        with suppress(OSError, psutil.Error):
            found["read_bytes"] = float(self._process.io_counters().read_bytes)
        return found

    def _levels(self) -> dict[str, float]:
        found: dict[str, float] = {}
        if (cores := self._group.cores()) is not None:
            found["quota_cores"] = cores
        found["memory"] = psutil.virtual_memory().percent / 100
        with suppress(OSError, StopIteration, ValueError):
            lines = Path("/proc/self/status").read_text().splitlines()
            found["swapped_bytes"] = 1024.0 * int(next(one for one in lines if one.startswith("VmSwap")).split()[1])
        if (clock := psutil.cpu_freq()) is not None and clock.max:
            found["clock"] = clock.current / clock.max
        return found

    def _others(self) -> str:
        """Return the name and process number of the busiest process that is not this one."""
        busiest: tuple[bool, float, str] = (False, 0.0, "")
        here = set(self._process.cpu_affinity()) if hasattr(self._process, "cpu_affinity") else set()
        for one in psutil.process_iter(("name",)):
            with suppress(psutil.Error):
                used = one.cpu_percent()
                if one.pid != self._process.pid and used > _BUSY_PERCENT:
                    same = bool(here) and set(one.cpu_affinity()) == here
                    busiest = max(busiest, (same, used, f"{one.info['name']} ({one.pid})"))
        return busiest[2]


def _machine() -> dict[str, float]:
    times = psutil.cpu_times()
    steal = getattr(times, "steal", 0.0)
    found = {"machine_busy_s": sum(times) - times.idle - getattr(times, "iowait", 0.0), "stolen_s": steal}
    with suppress(OSError, AttributeError):
        swap = psutil.swap_memory()
        found["swap_bytes"] = float(swap.sin + swap.sout)
    return found


def _compiled() -> dict[str, float]:
    """Return the seconds that torch.compile has taken, if the script uses it."""
    import sys

    utils = sys.modules.get("torch._dynamo.utils")
    times = getattr(utils, "compilation_time_metrics", None)
    return {"compiled_s": sum(times.get("_compile.compile_inner", ()))} if times else {"compiled_s": 0.0}


class _ControlGroup:
    """The control group of this process."""

    def __init__(self, stat: Path | None, limits: tuple[Path, ...]) -> None:
        self._stat = stat
        self._limits = limits

    @classmethod
    def find(cls, own: Path = Path("/proc/self/cgroup"), tree: Path = Path("/sys/fs/cgroup")) -> _ControlGroup:
        paths: dict[str, str] = {}
        for line in own.read_text().splitlines() if own.is_file() else []:
            _, controllers, path = line.split(":", 2)
            paths.update((controller, path.lstrip("/")) for controller in controllers.split(","))
        limits: tuple[Path, ...]
        if "cpu" in paths:  # version 1
            folder = next((one for one in (tree / "cpu", tree / "cpu,cpuacct") if one.is_dir()), tree / "cpu")
            group = folder / paths["cpu"]
            limits = (group / "cpu.cfs_quota_us", group / "cpu.cfs_period_us")
        else:
            group = tree / paths.get("", "")
            limits = (group / "cpu.max",)
        stat = group / "cpu.stat"
        return cls(stat if stat.is_file() else None, limits)

    def throttled(self) -> dict[str, float]:
        if self._stat is None:
            return {}
        try:
            rows = dict(line.split() for line in self._stat.read_text().splitlines())
        except OSError:  # the group has been removed
            return {}
        seconds = (
            int(rows["throttled_time"]) / _NS if "throttled_time" in rows else int(rows.get("throttled_usec", 0)) / 1e6
        )
        return {"throttled": float(rows.get("nr_throttled", 0)), "throttled_s": seconds}

    def cores(self) -> float | None:
        """Return the processors that the quota allows; None without a quota."""
        try:
            words = " ".join(path.read_text() for path in self._limits).split()
        except OSError:
            return None
        return int(words[0]) / int(words[1]) if len(words) == 2 and words[0] not in ("-1", "max") else None


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
