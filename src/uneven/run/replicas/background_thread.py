"""The background thread that takes part in exchanges, one after the other (ShadowSync, §1.3, §1.6).

The training never waits for it: it hands over a job if the thread is idle, and otherwise skips that exchange. Only
the threads of different workers wait for each other. If one worker ends early, its thread still takes part, and
signals in every exchange that it rests. The exchange in which all workers rest is the last one on each of them.

A delayed exchange is the exception: the training waits for it at a later step, in which its outcome enters.
"""

import math
import threading
import time
from collections.abc import Callable
from typing import Any

from uneven.errors import TrainingError

# A step is undisturbed if nothing was exchanged for half the quiet time before the last exchange, within these bounds.
# An exchange may cost time after its end: for example, a control group that has exceeded its share is stopped later.
_QUIET_S = 0.1, 2.0

PATIENCE_S = 300.0
"""Training time without an exchange after which there is one in any case. Steps may have become longer for good; then
most of the measured overhead is not caused by exchanges, and replicas would diverge for no reason."""

# Undisturbed steps before the first exchange. Every other exchange needs at least one before it, to keep the estimate
# current.
_KNOWN = 4

# EMA weight of the newest undisturbed step after many of them; before that, 3 in their number + 2. The first steps of a
# run are the longest: with equal weights, exchanges seemed to cost less than nothing.
_WEIGHT, _SOONER = 0.02, 3

# A step counts as at most this many undisturbed ones, because it may be long for other reasons.
_LONGEST = 10.0

# Seconds of training whose allowance may be saved; more would be spent in one burst.
_CREDIT_S = 1.0


class OverheadBudget:
    """The overhead of one worker's steps: how much longer than undisturbed ones they are, and how much that may be.

    It counts overhead of any origin. An exchange takes processors, caches and the interpreter's lock. The kernel
    charges its work for arriving packets to the process that runs at that moment. With a spare processor it is near 0.
    """

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._usual_s = 0.0
        self._seen = 0  # undisturbed steps in the average
        self._undisturbed = -_KNOWN  # steps since the last exchange started
        self._lost_s = self._trained_s = 0.0
        self._quiet_s = 0.0
        self._asked_s = _QUIET_S[0]

    def stepped(self, took_s: float, quiet_s: float) -> None:
        """Count a step; before its end nothing was exchanged for ``quiet_s``."""
        counted_s = min(took_s, _LONGEST * self._usual_s) if self._seen else took_s
        self._trained_s += counted_s
        self._quiet_s = quiet_s
        # quiet_s is 0 only while all other workers exchange too: waiting for them costs nothing.
        if quiet_s < took_s + self._asked_s:
            self._lost_s += counted_s - self._usual_s if self._seen else 0.0
            return
        self._undisturbed += 1
        self._seen += 1
        weight = max(_WEIGHT, _SOONER / (self._seen + _SOONER - 1))  # 1 at first
        self._usual_s += weight * (counted_s - self._usual_s)

    def allows(self, load: float) -> bool:
        """Return whether an exchange may start if all of them together may cost this part of the time."""
        if self._trained_s >= self._patience_s:
            return True
        return self._undisturbed > 0 and self._lost_s <= load * self._trained_s

    def begin(self, load: float) -> None:
        self._lost_s = max(self._lost_s - load * self._trained_s, -load * _CREDIT_S)
        if self._trained_s >= self._patience_s:
            self._lost_s = 0.0
        self._trained_s = 0.0
        self._undisturbed = 0
        least_s, most_s = _QUIET_S
        before_s = self._quiet_s if math.isfinite(self._quiet_s) else 0.0
        self._asked_s = min(max(least_s, before_s / 2), most_s)


Job = Callable[[], Any]


class BackgroundThread:
    """A thread for exchanges, started when it is first needed.

    Attributes:
        exchanging: whether an exchange is under way that all members have started; False while this worker rests.
    """

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self.exchanging = False
        self._changed = threading.Condition()
        self._job: tuple[Job, Job | None, bool] | None = None  # under way, or about to be; whether this worker rests
        self._result: Any = None  # of the last job
        self._held: tuple[Job, Callable[[Any], object]] | None = None  # a delayed exchange
        self._error: TrainingError | None = None
        self._leaving = self._ended = False
        self._thread: threading.Thread | None = None
        self._budget = OverheadBudget(patience_s)
        self._through_s = -math.inf  # end of the last exchange that overlapped with training
        self._stepped_s: float | None = None

    @property
    def failed(self) -> bool:
        """True if the thread has failed, and :meth:`arrive` will not raise its error."""
        return self._ended and not self._leaving and self._held is None

    def stepped(self) -> None:
        """Note the end of a step; its duration shows the cost of exchanges."""
        now_s = time.perf_counter()
        if self._stepped_s is not None:
            quiet_s = 0.0 if self.exchanging else now_s - self._through_s
            self._budget.stepped(now_s - self._stepped_s, quiet_s)
        self._stepped_s = now_s

    def paused(self) -> None:
        """Stop timing until the next step: the epoch has ended, or the model is evaluated."""
        self._stepped_s = None

    def resumed(self) -> None:
        if self._stepped_s is None:
            self._stepped_s = time.perf_counter()

    def free(self, load: float = 1.0) -> bool:
        """Return whether an exchange can start now: none is under way, and its ``load``, a part of the time, is
        affordable. Raises :class:`TrainingError` if an exchange has failed."""
        if self._ended:
            with self._changed:
                self._check()
        # Called after every step, so without the lock, which is safe because only this thread sets a job.
        return self._job is None and (load >= 1.0 or self._budget.allows(load))

    def launch(self, job: Job, gather: Job | None = None, load: float = 1.0) -> None:
        """Start a job; never waits, because none is under way, unless Ctrl-C has interrupted the wait for it.

        Args:
            gather: called before it, in the thread: waits until the others have started too, at no cost to the
                training.
        """
        self._budget.begin(load)
        self._start(job, gather, resting=False)

    def wait(self) -> Any:
        """Wait for the job, and return its result; raises :class:`TrainingError` if it failed."""
        with self._changed:
            self._changed.wait_for(lambda: self._job is None or self._ended)
            self._check()
            return self._result

    def rest(self, job: Callable[[], bool], gather: Job | None = None) -> None:
        """Take part in exchanges until all workers rest, as ``job`` returns; afterwards nothing is under way. Raises
        :class:`TrainingError`."""
        while True:
            self._start(job, gather, resting=True)
            if self.wait() or self._ended:
                return

    def hold(self, receive: Job, land: Callable[[Any], object]) -> None:
        """Keep an exchange until its outcome is needed: ``receive`` waits for it, ``land`` merges its result."""
        self._held = receive, land

    def arrive(self, drop: bool = False) -> None:
        """Wait for the held exchange, and merge or ``drop`` it; raises :class:`TrainingError` if it failed."""
        held, self._held = self._held, None
        if held is not None:
            receive, land = held
            try:
                found = receive()
            except TrainingError:
                if self._ended:  # the training may continue: the next exchange starts a thread again
                    self._ended, self._job, self._error, self._thread = False, None, None, None
                raise
            if not drop:
                land(found)

    # ---------------------------------------------------------------- the thread
    def close(self) -> None:
        """End the thread."""
        with self._changed:
            self._leaving = True
            self._changed.notify_all()
            idle = self._job is None
        # A daemon thread that waits for a worker that will never come is left behind.
        if self._thread is not None and (idle or self._ended):
            self._thread.join()

    def _start(self, job: Job, gather: Job | None, resting: bool) -> None:
        self.wait()  # the thread has only one line, so it makes one exchange at a time
        with self._changed:
            self._job = job, gather, resting
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="uneven-shadow", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def _check(self) -> None:
        if self._ended and not self._leaving:
            raise self._error or TrainingError("the background exchange has ended: see its error")

    def _run(self) -> None:
        try:
            while self._turn():
                pass
        except TrainingError as error:
            self._error = error
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _turn(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._job is not None or self._leaving)
            if self._leaving or self._job is None:
                return False
            job, gather, resting = self._job
        if gather is not None:
            gather()
        self.exchanging = not resting  # this worker no longer trains when it rests
        result = job()
        with self._changed:
            self._job, self._result, self.exchanging = None, result, False
            if not resting:
                self._through_s = time.perf_counter()
            self._changed.notify_all()
        return True
