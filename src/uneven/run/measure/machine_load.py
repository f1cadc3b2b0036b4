"""Use of the machine and of this process: psutil, and NVML where there is a GPU."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import psutil
import torch

from uneven.policy.core.records import LoadRecord
from uneven.run.measure import memory


class LoadMeter:
    """Samples now and then; reading ``/proc`` on every step would cost more than it tells.

    What passes between two samples is time of the training. So a loop that is often interrupted pays no larger part of
    its time than another one, and one that stands still is not looked at.

    Args:
        rank: for the records.
        gpu_uuid: this worker's device as NVML knows it, or None. Not its index: NVML counts every device of the
            machine, CUDA only those that CUDA_VISIBLE_DEVICES leaves.
        every_s: training from one sample to the next; memory is looked at after a larger batch than any before, too.
        device: where the worker computes, and whose memory a larger batch would fill.

    Attributes:
        memory: part in use, 0 … 1, of the memory that a larger batch would fill; NaN before the first sample.
    """

    def __init__(
        self, rank: int, gpu_uuid: str | None = None, every_s: float = 5.0, device: torch.device | None = None
    ) -> None:
        self._rank = rank
        self._every_s = every_s
        self._process = psutil.Process()
        self._gpu = _Gpu.open(gpu_uuid)
        self._left_s = 0.0
        self._process.cpu_percent()  # the first call only sets psutil's starting point
        self._times_s = _times_s()
        self._device = torch.device("cpu") if device is None else device
        self._largest = 0
        self.memory = math.nan

    def sample(self, iteration: int, batch: int, trained_s: float) -> Callable[[], LoadRecord] | None:
        """What makes a record if one is due, else None; the first one is due at once.

        To look takes a millisecond or two between two steps, so whoever writes the record does that, beside the
        training: each within half a second, in order, and in one thread. Where nobody writes, see :meth:`refresh`.

        Args:
            batch: samples of the iteration; after more than ever before, :attr:`memory` is read at once.
            trained_s: seconds of training since the last call.
        """
        self._left_s -= trained_s
        if batch > self._largest:
            self._largest = batch
            self.refresh()
        if self._left_s > 0.0:
            return None
        self._left_s = self._every_s
        return partial(self._look, iteration, time.time())

    def refresh(self) -> None:
        """Read :attr:`memory`."""
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
            machine_cpu=min(max(used, 0.0), 1.0),  # rounding exceeds 1, and the kernel's iowait may decrease
            machine_memory=psutil.virtual_memory().percent / 100,
            process_cpu=self._process.cpu_percent() / 100,
            process_memory_bytes=self._process.memory_info().rss,
            gpu=gpu,
            gpu_memory_bytes=gpu_memory_bytes,
        )

    def close(self) -> None:
        """Let go of NVML."""
        if self._gpu:
            self._gpu.close()
            self._gpu = None


def _times_s() -> tuple[float, float]:
    """Processor seconds of the machine so far: busy, and all. psutil's own share of them is kept for each thread."""
    times = psutil.cpu_times()
    all_s = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)  # these are counted twice
    return all_s - times.idle - getattr(times, "iowait", 0.0), all_s


class _Gpu:
    """One device through NVML."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle

    @classmethod
    def open(cls, uuid: str | None) -> _Gpu | None:
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
        """Use 0 … 1 and bytes in use."""
        try:
            use = self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu / 100
            return use, int(self._nvml.nvmlDeviceGetMemoryInfo(self._handle).used)
        except self._nvml.NVMLError:
            return None, None  # some virtual devices refuse one of the two

    def close(self) -> None:
        self._nvml.nvmlShutdown()


def nvml_uuid(device: torch.device) -> str | None:
    """A CUDA device's name in NVML; None for other devices."""
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}" if device.type == "cuda" else None
