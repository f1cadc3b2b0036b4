"""Divides the time of an iteration into its parts.

::

    next(loader) ends     last bucket ready   exchange over      next(loader) called    next batch handed over
          │ forward, backward    │  exchange_s    │ optimizer, rest      │        data_s          │
          ├──────────────────────┼────────────────┼──────────────────────┼────────────────────────┤
          begin                ready             done                   end                     begin
          └────────── compute_s ─┘                └──────── compute_s ───┘

The exchange overlaps the backward pass: compute ends when the last bucket is ready, and only the rest of the exchange
counts as ``exchange_s``. Several backward passes in one iteration add up. Work that serves several iterations (a part
that refreshes something every hundred) counts equally in each of them. So it does not look like a change of speed.
"""

import math
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

Mark = Any  # made by a clock, which only this clock can read


class HostClock:
    """The host's clock. A mark is a point in the work issued so far: the time and the processor time."""

    def mark(self) -> tuple[float, float]:
        """Return a mark at this point."""
        return time.perf_counter(), time.process_time()

    def glance(self) -> tuple[float, float]:
        """Return a mark without processor time, which is the more expensive half."""
        return time.perf_counter(), math.nan  # for processor time the kernel looks at every thread of the process

    def passed(self, mark: tuple[float, float]) -> bool:
        """Return whether the work before the mark is done, so that durations up to it can be read."""
        return True

    def between(self, earlier: tuple[float, float], later: tuple[float, float]) -> tuple[float, float]:
        """Return the seconds between two passed marks, and the processor seconds of this process (all threads)
        between them; NaN if one mark is a glance."""
        return later[0] - earlier[0], later[1] - earlier[1]


class ThreadClock(HostClock):
    """The clock of one of several computing threads, with its own processor time."""

    def mark(self) -> tuple[float, float]:
        return time.perf_counter(), time.thread_time()


class DeviceClock:
    """The clock of an accelerator: marks are events in its current stream.

    The host runs ahead of the device, so its own clock would time the launch of kernels, not their work.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def mark(self) -> torch.Event:
        """Record an event in the device's current stream."""
        event = torch.Event(self._device, enable_timing=True)
        event.record(torch.accelerator.current_stream(self._device))
        return event

    glance = mark

    def passed(self, mark: torch.Event) -> bool:
        """Return whether the device has reached the event, without waiting."""
        return mark.query()

    def between(self, earlier: torch.Event, later: torch.Event) -> tuple[float, float]:
        """Return the device time, and 0 because exchanges between devices need no processor time."""
        return earlier.elapsed_time(later) / 1e3, 0.0


Clock = HostClock | DeviceClock


def clock_for(device: torch.device) -> Clock:
    return HostClock() if device.type == "cpu" else DeviceClock(device)


_MOST, _PATIENCE_S = 32, 1.0  # iterations that may wait to be read, and seconds of training before they are read

# An iteration can wait if the log of its local time differs from that of the last one read by less than _USUAL, or than
# _SPREADS times the mean difference (in which the newest has weight _NEWEST). For two in a row on the same side the
# limit is _LASTING times the mean difference: with large noise a change is not larger, but it lasts.
_USUAL, _SPREADS, _LASTING, _NEWEST = 0.22, 2.5, 1.5, 0.1

# Without exchanges, processor time is read only once in this many iterations. With a hundred threads the kernel takes
# as long for the answer as all other measuring.
_KNOWN_EVERY = 8


class MeterReading(NamedTuple):
    """The parts of one iteration's time, in seconds.

    ``transfer_s`` is the part of ``exchange_s`` that this worker's own side takes: its processor time there, at the
    rate at which it gets processor time while computing. Moving bytes through sockets is work, and a worker with a
    tenth of a core needs ten times as long for it.

    ``local_cpu_s`` and ``exchange_cpu_s`` are the processor time of this process (all threads) in the two parts of the
    iteration; 0 if the clock cannot measure it. Without exchanges, the first is measured for several iterations
    together, as a fraction of ``local_s``.
    """

    # A tuple instead of a dataclass, because every step makes one.
    iteration: int
    data_s: float
    compute_s: float
    exchange_s: float
    transfer_s: float = 0.0
    local_cpu_s: float = 0.0
    exchange_cpu_s: float = 0.0

    @property
    def local_s(self) -> float:
        """The time of this worker's own work: data and compute."""
        return self.data_s + self.compute_s

    @property
    def whole_s(self) -> float:
        """The time from requesting its batch to its end."""
        return self.local_s + self.exchange_s


class OwnTime(NamedTuple):
    """The mean of a worker's own work in the newest iterations; NaN before the first."""

    local_s: float = math.nan  # seconds without waiting for others
    local_cpu_s: float = math.nan  # processor seconds in these; divided by `local_s`, the number of cores it gets
    exchange_cpu_s: float = math.nan  # processor seconds in exchanges


@dataclass(frozen=True, slots=True)
class _Spread:
    """A block in one iteration that serves several."""

    begin: Mark
    end: Mark
    waits: tuple[tuple[Mark, Mark], ...]  # for others, inside of it
    iterations: int


@dataclass(slots=True)
class _Owed:
    """The rest of such a block that each of the next iterations counts: seconds, and processor seconds."""

    each_s: float
    each_cpu_s: float
    left: int


@dataclass(slots=True)
class _Marks:
    iteration: int
    asked: Mark  # when the batch was asked for
    begin: Mark
    exchanges: tuple[tuple[Mark, Mark], ...] = ()
    spreads: tuple[_Spread, ...] = ()
    asides: tuple[tuple[Mark, Mark], ...] = ()
    end: Mark = None
    worked: Mark = None  # the processor time between here and the end is known, too


class Meter:
    """Takes marks as the loop runs, and returns timings that can be read without waiting."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._asked: Mark = None
        self._open: _Marks | None = None
        self._ready: Mark = None
        self._closed: deque[_Marks] = deque()
        self._since: Mark = None  # start of the oldest iteration that was not read
        self._usual_s = math.nan
        self._spread = 0.0  # mean difference from it
        self._apart = 0.0  # of the newest iteration
        self._cores = 0.0  # processor time per second of training without exchanges, as last measured
        self._worked: Mark = None  # last mark with processor time, if no pause followed
        self._unknown = _KNOWN_EVERY  # iterations since then; the initial value makes the first one known
        self._exchanges = False  # whether the training has ever waited for an exchange
        self._spreading = False
        self._owed: list[_Owed] = []
        self.own_time = OwnTime()  # mean over the timings that were read
        self._averaged = 0  # iterations in `own_time`; below 0: iterations to ignore

    def begin(self, iteration: int) -> None:
        """Start an iteration, before its batch is yielded."""
        now = self._clock.mark() if self._exchanges or self._worked is None else self._clock.glance()
        self._worked = now if self._worked is None else self._worked
        self._open = _Marks(iteration, now if self._asked is None else self._asked, now)
        self._asked = self._ready = None

    def ready(self) -> None:
        """End compute: the last bucket of gradients is ready."""
        self._ready = self._clock.mark()

    def done(self) -> None:
        """End the exchange: compute continues."""
        if self._open is not None and self._ready is not None:
            self._open.exchanges += ((self._ready, self._clock.mark()),)
            self._exchanges = True
        self._ready = None

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time inside as waiting in an exchange other than that of the gradients."""
        if self._ready is not None:  # inside of another one
            yield
            return
        self.ready()
        try:
            yield
        finally:
            self.done()

    @contextmanager
    def spread(self, iterations: int) -> Iterator[None]:
        """Count the time inside in equal parts in this and the next ``iterations`` − 1 iterations."""
        marks = self._open
        if marks is None or self._ready is not None or self._spreading:
            yield
            return
        self._spreading, waited, begin = True, len(marks.exchanges), self._clock.mark()
        try:
            yield
        finally:
            self._spreading = False
            marks.spreads += (_Spread(begin, self._clock.mark(), marks.exchanges[waited:], iterations),)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Exclude the time inside from the iteration, for instance an evaluation."""
        opened, began = self._open, self._clock.mark()
        self._open = None
        try:
            yield
        finally:
            self._open, self._ready = opened, None
            self.pause()
            if opened is not None:
                opened.asides += ((began, self._clock.mark()),)

    @property
    def waited_s(self) -> float:
        """The seconds of exchanges in the iteration under way, as far as its clock can read them without waiting."""
        exchanges = () if self._open is None else self._open.exchanges
        return sum(self._clock.between(ready, done)[0] for ready, done in exchanges if self._clock.passed(done))

    def end(self) -> None:
        """End the iteration: the next batch is requested."""
        known = self._exchanges or self._unknown + 1 >= _KNOWN_EVERY
        now = self._clock.mark() if known else self._clock.glance()
        if self._open is not None:
            if known:
                self._open.worked = self._worked
                self._worked, self._unknown = now, -1
            self._open.end = now
            self._closed.append(self._open)
            self._since = self._open.begin if self._since is None else self._since
            self._unknown += 1
        self._open, self._asked = None, now

    def pause(self) -> None:
        """Exclude the time from now on from all iterations, between two epochs or in an evaluation."""
        # also postpones reading, because after a pause the caches are cold
        self._asked = self._since = self._worked = None

    def interrupted(self) -> None:
        """Ignore the processor time of this iteration, because not all of it is training."""
        self._worked = None

    def ripe(self, acts: bool = True) -> bool:
        """Return whether to read ended iterations: after a second, after 32 of them, or after an unusual one if that
        ``acts``."""
        if not self._closed or len(self._closed) >= _MOST:
            return bool(self._closed)
        # Right after a step the caches hold the model, so reading several usual iterations together costs as much as
        # reading one. It does not delay the detection of a change.
        newest = self._closed[-1]
        if not self._clock.passed(newest.end):
            return False
        between = self._clock.between
        old = self._since is not None and between(self._since, newest.end)[0] >= _PATIENCE_S
        if old or not acts:
            return old
        local_s = between(newest.asked, newest.end)[0]
        for ready, done in (*newest.exchanges, *newest.asides):
            local_s -= between(ready, done)[0]
        return self._strange(local_s)

    def _strange(self, local_s: float) -> bool:
        """Return whether an iteration is unusual, and update the usual difference."""
        if not (self._usual_s > 0.0 and local_s > 0.0):
            return True
        before, self._apart = self._apart, math.log(local_s / self._usual_s)
        off, usual, low = abs(self._apart), max(_USUAL, _SPREADS * self._spread), max(_USUAL, _LASTING * self._spread)
        self._spread += _NEWEST * (min(off, 2.0 * usual) - self._spread)
        return off > usual or (off > low and abs(before) > low and before * self._apart > 0.0)

    def timings(self) -> list[MeterReading]:
        """Return every iteration that ended since the last call and whose marks have passed, oldest first."""
        found = []
        while self._closed and self._clock.passed(self._closed[0].end):
            found.append(self._read(self._closed.popleft()))
            self._average(found[-1])
            self._usual_s, self._apart = found[-1].local_s, 0.0
        self._since = self._closed[0].begin if self._closed else None
        return found

    def work_changed(self) -> None:
        """Restart :attr:`own_time` with the second iteration from now, because iterations do other work."""
        self.own_time = OwnTime()
        self._averaged = -len(self._closed) - 1

    def _average(self, newest: MeterReading) -> None:
        self._averaged += 1
        if self._averaged < 1:
            return
        now = OwnTime(newest.local_s, newest.local_cpu_s, newest.exchange_cpu_s)
        if not math.isnan(self.own_time.local_s):
            weight = max(_NEWEST, 1.0 / self._averaged)
            now = OwnTime(*(old + weight * (new - old) for old, new in zip(self.own_time, now, strict=True)))
        self.own_time = now

    def _read(self, marks: _Marks) -> MeterReading:
        between = self._clock.between
        exchange_s = moved_s = 0.0
        for ready, done in marks.exchanges:
            waited_s, worked_s = between(ready, done)
            exchange_s += waited_s
            moved_s += worked_s
        data_s = between(marks.asked, marks.begin)[0]
        whole_s, worked_s = between(marks.begin, marks.end)
        own_s = between(marks.asked, marks.end)[1]
        for began, over in marks.asides:
            aside_s, used_s = between(began, over)
            whole_s, worked_s, own_s = whole_s - aside_s, worked_s - used_s, own_s - used_s
        compute_s, computed_s = whole_s - exchange_s, worked_s - moved_s  # NaN before there was any exchange
        transfer_s = min(exchange_s, moved_s * compute_s / computed_s) if computed_s > 0 else 0.0
        local_cpu_s = own_s - moved_s
        if marks.spreads or self._owed:
            later_s, later_cpu_s = self._later(marks.spreads)
            compute_s, local_cpu_s = compute_s - later_s, local_cpu_s - later_cpu_s
        local_s = data_s + compute_s
        if marks.worked is not None and not marks.exchanges:
            went_on_s, used_s = between(marks.worked, marks.end)
            self._cores = used_s / went_on_s if went_on_s > 0.0 else 0.0
        if math.isnan(local_cpu_s):
            local_cpu_s = self._cores * local_s
        return MeterReading(marks.iteration, data_s, compute_s, exchange_s, transfer_s, local_cpu_s, moved_s)

    def _later(self, spreads: tuple[_Spread, ...]) -> tuple[float, float]:
        """Return the time of this iteration that later ones count, minus its own part of all blocks."""
        between, later_s, later_cpu_s = self._clock.between, 0.0, 0.0
        for one in spreads:
            seconds, cpu_s = between(one.begin, one.end)
            for wait in one.waits:
                waited_s, worked_s = between(*wait)
                seconds, cpu_s = seconds - waited_s, cpu_s - worked_s
            self._owed.append(_Owed(seconds / one.iterations, cpu_s / one.iterations, one.iterations))
            later_s, later_cpu_s = later_s + seconds, later_cpu_s + cpu_s
        for owed in self._owed:
            later_s, later_cpu_s, owed.left = later_s - owed.each_s, later_cpu_s - owed.each_cpu_s, owed.left - 1
        self._owed = [owed for owed in self._owed if owed.left]
        return later_s, later_cpu_s
