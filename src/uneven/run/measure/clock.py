"""Clocks with marks on the host, or in the stream of a CUDA device without making the host wait."""

from __future__ import annotations

import math
import time
from typing import Any, Protocol

import torch

Mark = Any  # made by a clock, which only this clock can read


class Clock(Protocol):
    """Marks points in the work issued so far."""

    def mark(self) -> Mark:
        """Return a mark at this point."""

    def glance(self) -> Mark:
        """Return a mark without processor time, which is the more expensive half."""

    def passed(self, mark: Mark) -> bool:
        """Return whether the work before the mark is done, so that durations up to it can be read."""

    def between(self, earlier: Mark, later: Mark) -> tuple[float, float]:
        """Return the seconds between two passed marks, and the processor seconds of this process (all threads)
        between them: 0 if a device cannot measure them, NaN if one mark is a glance."""


class HostClock:
    """The host's clock. A mark is the time and the processor time."""

    def mark(self) -> tuple[float, float]:
        return time.perf_counter(), time.process_time()

    def glance(self) -> tuple[float, float]:
        return time.perf_counter(), math.nan  # for processor time the kernel looks at every thread of the process

    def passed(self, mark: tuple[float, float]) -> bool:
        return True

    def between(self, earlier: tuple[float, float], later: tuple[float, float]) -> tuple[float, float]:
        return later[0] - earlier[0], later[1] - earlier[1]


class ThreadClock(HostClock):
    """The clock of one of several computing threads, with its own processor time."""

    def mark(self) -> tuple[float, float]:
        return time.perf_counter(), time.thread_time()


class CudaClock:
    """The clock of a device: marks are events in its current stream.

    The host runs ahead of the device, so its own clock would time the launch of kernels, not their work.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._spare: list[torch.cuda.Event] = []

    def mark(self) -> torch.cuda.Event:
        """Record an event in the device's current stream."""
        event = self._spare.pop() if self._spare else torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def glance(self) -> torch.cuda.Event:
        return self.mark()

    def passed(self, mark: torch.cuda.Event) -> bool:
        """Return whether the device has reached the event, without waiting."""
        return mark.query()

    def between(self, earlier: torch.cuda.Event, later: torch.cuda.Event) -> tuple[float, float]:
        """Return the device time, and 0 because exchanges between devices need no processor time."""
        return earlier.elapsed_time(later) / 1e3, 0.0


def clock_for(device: torch.device) -> Clock:
    return CudaClock(device) if device.type == "cuda" else HostClock()
