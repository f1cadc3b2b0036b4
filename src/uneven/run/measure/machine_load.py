"""The load of the machine and of this process, from psutil and (for GPUs) NVML."""

import math
import os
import platform
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import torch

from uneven.policy.core.records import LoadRecord
from uneven.run.measure import memory

_PROCESSORS = Path("/proc/cpuinfo")


def kind_of(device: torch.device) -> str:
    """Return the name of an accelerator; otherwise that of the processor and the number of cores this process may
    use."""
    if device.type in ("cuda", "xpu"):
        return str(torch.get_device_module(device).get_device_name(device))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{_processor()}, {cores} cores"


def _processor() -> str:
    lines = _PROCESSORS.read_text().splitlines() if _PROCESSORS.is_file() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


class LoadMeter:
    """Reads the load at intervals, because reading ``/proc`` on every step costs too much.

    Intervals count training time, so an often interrupted loop pays no larger fraction of its time, and an idle loop
    pays nothing.

    Args:
        gpu_uuid: NVML's name of this worker's device, or None. Not its index: NVML counts every device of the machine,
            CUDA only those in CUDA_VISIBLE_DEVICES.
        every_s: training time from one reading to the next; memory is also read after the largest batch so far.
        device: on which the worker computes, and whose memory a larger batch would fill.

    Attributes:
        memory: fraction in use, 0 … 1, of the memory that a larger batch would fill; NaN before the first reading.
    """

    def __init__(
        self, rank: int, gpu_uuid: str | None = None, every_s: float = 5.0, device: torch.device | None = None
    ) -> None:
        self._rank = rank  # for the records
        self._every_s = every_s
        self._process = psutil.Process()
        self._gpu = Gpu.open(gpu_uuid)
        self._left_s = 0.0
        self._process.cpu_percent()  # the first call only sets psutil's starting point
        self._times_s = _times_s()
        self._device = torch.device("cpu") if device is None else device
        self._largest = 0
        self.memory = math.nan

    def sample(self, iteration: int, batch: int, trained_s: float) -> Callable[[], LoadRecord] | None:
        """Return a function that reads the load, if a reading is due after ``trained_s`` more seconds of training.

        The journal's writer calls it, in its thread, in order and within half a second; without a journal, call
        :meth:`refresh`. The largest ``batch`` so far updates :attr:`memory`.
        """
        self._left_s -= trained_s
        if batch > self._largest:
            self._largest = batch
            self.refresh()
        if self._left_s > 0.0:
            return None
        self._left_s = self._every_s
        return partial(self._look, iteration, time.time())  # a reading takes 1–2 ms, so not between two steps

    def refresh(self) -> None:
        self.memory = memory.use(self._device)

    def _look(self, iteration: int, at_s: float) -> LoadRecord:
        self.refresh()
        gpu, gpu_memory_bytes = self._gpu.read() if self._gpu else (None, None)
        (busy_s, all_s), before = _times_s(), self._times_s
        self._times_s = busy_s, all_s
        used = (busy_s - before[0]) / (all_s - before[1]) if all_s > before[1] else 0.0
        return LoadRecord(
            rank=self._rank,
            iteration=iteration,
            at_s=at_s,
            machine_cpu=min(max(used, 0.0), 1.0),  # rounding may exceed 1, and the kernel's iowait may decrease
            machine_memory=psutil.virtual_memory().percent / 100,
            process_cpu=self._process.cpu_percent() / 100,
            process_memory_bytes=self._process.memory_info().rss,
            gpu=gpu,
            gpu_memory_bytes=gpu_memory_bytes,
        )

    def close(self) -> None:
        if self._gpu:
            self._gpu.close()
            self._gpu = None


def _times_s() -> tuple[float, float]:
    """Return the machine's processor seconds so far: busy, and all."""
    times = psutil.cpu_times()  # psutil's own percentage keeps its state per thread
    all_s = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)  # these are counted twice
    return all_s - times.idle - getattr(times, "iowait", 0.0), all_s


class Gpu:
    """One device in NVML."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle

    @classmethod
    def open(cls, uuid: str | None) -> "Gpu | None":
        """Return the device; None if there is none, no driver answers, or the extra ``gpu`` is not installed."""
        if uuid is None or find_spec("pynvml") is None:
            return None
        import pynvml

        try:
            pynvml.nvmlInit()
            return cls(pynvml, pynvml.nvmlDeviceGetHandleByUUID(uuid))
        except pynvml.NVMLError:
            return None

    def read(self) -> tuple[float | None, int | None]:
        try:
            use = self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu / 100
            return use, int(self._nvml.nvmlDeviceGetMemoryInfo(self._handle).used)
        except self._nvml.NVMLError:
            return None, None  # some virtual devices do not support one of the two

    def state(self) -> dict[str, float]:
        """Return the parts of its greatest clock rate and PCIe width, its temperature, and whether heat slows it."""
        nvml, handle = self._nvml, self._handle
        hot = nvml.nvmlClocksThrottleReasonSwThermalSlowdown | nvml.nvmlClocksThrottleReasonHwThermalSlowdown
        sources: dict[str, Callable[[], float]] = {
            "gpu_clock": lambda: (
                nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)
                / nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)
            ),
            "gpu_celsius": lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
            "gpu_hot": lambda: bool(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle) & hot),
            "pcie_width": lambda: (
                nvml.nvmlDeviceGetCurrPcieLinkWidth(handle) / nvml.nvmlDeviceGetMaxPcieLinkWidth(handle)
            ),
        }
        found = {}
        for name, read in sources.items():
            with suppress(nvml.NVMLError):
                found[name] = float(read())
        return found

    def close(self) -> None:
        self._nvml.nvmlShutdown()


def nvml_uuid(device: torch.device) -> str | None:
    """Return NVML's name of a CUDA device; None for other devices."""
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}" if device.type == "cuda" else None
