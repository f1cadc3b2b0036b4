"""Marks in time: on the host, or in the stream of a CUDA device without making the host wait for it."""

from __future__ import annotations

import math
import time
from typing import Any, Protocol

import torch

Mark = Any
"""What a clock hands out; only that clock can read it."""


class Clock(Protocol):
    """Marks moments of the work that was issued so far."""

    def mark(self) -> Mark:
        """This point in the order of the work."""
        ...

    def glance(self) -> Mark:
        """The same, where the processor time up to it need not be known: that is the dearer half of a mark."""
        ...

    def passed(self, mark: Mark) -> bool:
        """Whether the work before the mark is done, so that durations up to it can be read."""
        ...

    def between(self, earlier: Mark, later: Mark) -> tuple[float, float]:
        """Seconds between two marks that have both passed, and processor seconds that this process, all its threads,
        used meanwhile; 0 where a device cannot tell, NaN where one of them was a glance."""
        ...


class HostClock:
    """Work is done when the host has done it. A mark is the time and the processor time."""

    def mark(self) -> tuple[float, float]:
        """Now."""
        return time.perf_counter(), time.process_time()

    def glance(self) -> tuple[float, float]:
        """Now, without asking the kernel, which looks at every thread of the process for the processor time."""
        return time.perf_counter(), math.nan

    def passed(self, mark: tuple[float, float]) -> bool:
        """Always."""
        return True

    def between(self, earlier: tuple[float, float], later: tuple[float, float]) -> tuple[float, float]:
        """Differences of the times and of the processor times."""
        return later[0] - earlier[0], later[1] - earlier[1]


class ThreadClock(HostClock):
    """The same for one of several threads that compute side by side: its own processor time."""

    def mark(self) -> tuple[float, float]:
        return time.perf_counter(), time.thread_time()


class CudaClock:
    """Work is done when the device has done it: marks are events in its current stream, read once they passed.

    The host runs ahead of the device, so its own clock would time the issuing of kernels, not the work.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._spare: list[torch.cuda.Event] = []

    def mark(self) -> torch.cuda.Event:
        """An event recorded in the current stream of the device."""
        event = self._spare.pop() if self._spare else torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def glance(self) -> torch.cuda.Event:
        """The same."""
        return self.mark()

    def passed(self, mark: torch.cuda.Event) -> bool:
        """Whether the device has reached the event; does not wait."""
        return mark.query()

    def between(self, earlier: torch.cuda.Event, later: torch.cuda.Event) -> tuple[float, float]:
        """Device time; processor time is unknown, an exchange between devices does not live on it."""
        return earlier.elapsed_time(later) / 1e3, 0.0


def clock_for(device: torch.device) -> Clock:
    """The clock that sees the work of this device."""
    return CudaClock(device) if device.type == "cuda" else HostClock()
