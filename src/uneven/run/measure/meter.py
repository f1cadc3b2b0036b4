"""Takes one iteration's time apart.

::

    next(loader) ends     last bucket ready   exchange over      next(loader) called    next batch handed over
          │ forward, backward    │  exchange_s    │ optimizer, rest      │        data_s          │
          ├──────────────────────┼────────────────┼──────────────────────┼────────────────────────┤
          begin                ready             done                   end                     begin
          └────────── compute_s ─┘                └──────── compute_s ───┘

The exchange overlaps the backward pass; the moment the last bucket is ready ends compute, and only what is
left of the exchange after it counts as ``exchange_s``. Several backward passes in one iteration add up. What serves
several iterations (a part that refreshes something every hundred) counts in each of them alike, and so is no change of
speed.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from uneven.run.measure.clock import Clock, Mark

_MOST, _PATIENCE_S = 32, 1.0
"""Iterations that may wait to be read, and how long the training may go on meanwhile."""

_USUAL, _SPREADS, _LASTING, _NEWEST = 0.22, 2.5, 1.5, 0.1
"""An iteration whose local time differs by less than the first from that of the last one read can wait, or by less than
so many times what is usual here, in which the newest counts so much; differences of logarithms. Of two in a row that
differ to the same side, the third of these does: where noise is large, a change need not be larger, but lasts."""

_KNOWN_EVERY = 8
"""Where the training waits for no exchange, the processor time is asked for after so many iterations: for a process
with a hundred threads the kernel takes as long for the answer as all other measuring does."""


class MeterReading(NamedTuple):
    """Where the time of one iteration went, in seconds; a tuple, as one is made on every step.

    ``transfer_s`` is the part of ``exchange_s`` that this worker's own side of the exchange takes: the processor
    time that it used there, at the pace at which it gets processor time while it computes. Moving bytes through
    sockets is work, and a worker with a tenth of a core needs ten times as long for it as one with a whole one.

    ``local_cpu_s`` and ``exchange_cpu_s`` are the processor time of this process, all threads, in the two parts of the
    iteration; 0 where the clock cannot tell. Where the training waits for no exchange, the first is measured for
    several iterations together, and is the same part of ``local_s`` as when it was measured last.
    """

    iteration: int
    data_s: float
    compute_s: float
    exchange_s: float
    transfer_s: float = 0.0
    local_cpu_s: float = 0.0
    exchange_cpu_s: float = 0.0

    @property
    def local_s(self) -> float:
        """What this worker needs by itself: data and compute."""
        return self.data_s + self.compute_s

    @property
    def whole_s(self) -> float:
        """From asking for its batch to its end."""
        return self.local_s + self.exchange_s


class OwnTime(NamedTuple):
    """What a worker does by itself in an iteration, on average of the newest ones; NaN before any was measured.

    Attributes:
        local_s: seconds, without waiting for others.
        local_cpu_s: processor seconds in these; over ``local_s``, what it gets of a processor while it works.
        exchange_cpu_s: processor seconds in exchanges.
    """

    local_s: float = math.nan
    local_cpu_s: float = math.nan
    exchange_cpu_s: float = math.nan


@dataclass(frozen=True, slots=True)
class _Spread:
    """A block of one iteration that serves several."""

    begin: Mark
    end: Mark
    waits: tuple[tuple[Mark, Mark], ...]  # for others, inside of it
    iterations: int


@dataclass(slots=True)
class _Owed:
    """What each of the next iterations is still to count of such blocks: seconds, and processor seconds."""

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
    """Marks go in as the loop runs; timings come out as soon as they can be read without waiting.

    Attributes:
        own_time: as far as timings have come out.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._asked: Mark = None
        self._open: _Marks | None = None
        self._ready: Mark = None
        self._closed: deque[_Marks] = deque()
        self._since: Mark = None  # the training has gone on since then, with nothing read
        self._usual_s = math.nan
        self._spread = 0.0  # mean difference from it
        self._apart = 0.0  # of the newest iteration
        self._cores = 0.0  # processor time in a second of training without exchanges, where it was measured last
        self._worked: Mark = None  # where the processor time was asked for last, with no pause since
        self._unknown = _KNOWN_EVERY  # iterations since then; so many as if, before the first one
        self._exchanges = False  # whether the training has ever waited for an exchange
        self._spreading = False
        self._owed: list[_Owed] = []
        self.own_time = OwnTime()
        self._averaged = 0  # iterations in it; those that do not count are below 0

    def begin(self, iteration: int) -> None:
        """A batch is about to be handed over."""
        now = self._clock.mark() if self._exchanges or self._worked is None else self._clock.glance()
        self._worked = now if self._worked is None else self._worked
        self._open = _Marks(iteration, now if self._asked is None else self._asked, now)
        self._asked = self._ready = None

    def ready(self) -> None:
        """The last bucket of gradients is ready: compute ends."""
        self._ready = self._clock.mark()

    def done(self) -> None:
        """The exchange is over: compute goes on."""
        if self._open is not None and self._ready is not None:
            self._open.exchanges += ((self._ready, self._clock.mark()),)
            self._exchanges = True
        self._ready = None

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Inside, the training waits for others, in an exchange that is not the gradients'."""
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
        """What is done inside serves so many iterations, and counts in each of them alike, this one the first."""
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
        """Inside, nothing belongs to the iteration: an evaluation in the midst of it, say."""
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
        """Seconds of exchanges in the iteration under way, as far as its clock can tell without waiting."""
        exchanges = () if self._open is None else self._open.exchanges
        return sum(self._clock.between(ready, done)[0] for ready, done in exchanges if self._clock.passed(done))

    def end(self) -> None:
        """The next batch is asked for: the iteration is over."""
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
        """What comes now belongs to no iteration (the epoch is over; somebody evaluates). After it Python is as cold as
        it gets, which is no moment to begin with reading."""
        self._asked = self._since = self._worked = None

    def interrupted(self) -> None:
        """What comes until the end of the iteration is not all training; its processor time tells nothing."""
        self._worked = None

    def ripe(self, acts: bool = True) -> bool:
        """Whether to read what has ended: after a second, thirty-two iterations, or one that was not as usual.

        Right after a step the caches hold the model, and reading one iteration takes as long as reading several. So
        those that are like the one before are read together, and nobody learns of a change later than otherwise.

        Args:
            acts: whether anything follows from a change; else one that was not as usual can wait, too.
        """
        if not self._closed or len(self._closed) >= _MOST:
            return bool(self._closed)
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
        """Whether an iteration is not as usual; nothing is before one has been read. Where noise is large, all of them
        would be strange to somebody who expects little of it."""
        if not (self._usual_s > 0.0 and local_s > 0.0):
            return True
        before, self._apart = self._apart, math.log(local_s / self._usual_s)
        off, usual, low = abs(self._apart), max(_USUAL, _SPREADS * self._spread), max(_USUAL, _LASTING * self._spread)
        self._spread += _NEWEST * (min(off, 2.0 * usual) - self._spread)
        return off > usual or (off > low and abs(before) > low and before * self._apart > 0.0)

    def timings(self) -> list[MeterReading]:
        """Every iteration that ended since the last call and whose marks have passed, oldest first."""
        found = []
        while self._closed and self._clock.passed(self._closed[0].end):
            found.append(self._read(self._closed.popleft()))
            self._average(found[-1])
            self._usual_s, self._apart = found[-1].local_s, 0.0
        self._since = self._closed[0].begin if self._closed else None
        return found

    def work_changed(self) -> None:
        """Iterations are other work from now on: :attr:`own_time` begins anew, with the second of them."""
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
        """Seconds of this iteration that others count, less what it counts of its own and earlier blocks."""
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
