"""Queues this worker's batches for several threads, one batch to one thread, with a barrier where a step needs it.

Threads take batches in the order of the samples and finish them in any order. Three things hold everybody up:

* an exchange after a step, in which the training waits: nothing is handed out behind that step until all steps before
  it are over; the thread whose step ends last carries it out, while the others wait;
* a pause: one thread has the replica to itself, between two steps of each of the others;
* the end: somebody has failed or interrupted, and everybody leaves at the next batch.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from uneven.core.actions import Moment
from uneven.data.order import Portion
from uneven.errors import TrainingError
from uneven.run.parameter_server.served import Served
from uneven.run.parameters.agree import Agreement


class Stopped(TrainingError):
    """Raised in a thread's loop when another one has ended the training; ``session.train`` raises the cause."""


class BatchQueue:
    """One epoch's batches for several threads.

    Args:
        pairs: parts and this worker's batches, in order.
        rank: this worker.
        agreement: counts the steps and exchanges parameters; None where nothing is exchanged.

    Attributes:
        handed: iterations in the order in which they were handed out; whoever has written one down takes it away.
        first: the thread that ended the training first, if one did.
        pauses: how often a thread has had the replica to itself.
    """

    def __init__(self, pairs: Iterator[tuple[Portion, Any]], rank: int, agreement: Agreement | Served | None) -> None:
        self._pairs = pairs
        self._rank = rank
        self._agreement = agreement
        self._reading = threading.Lock()  # held while a batch is read, so that batches come in order
        self._lock = threading.RLock()  # entered itself, as Ctrl-C could leave a condition's own entrance half done
        self._changed = threading.Condition(self._lock)
        self._in_hand: dict[int, Portion] = {}  # thread → the batch whose step is not over
        self._busy: set[int] = set()  # threads that are in a step, or about to be, and not waiting for a pause
        self._due = self._stopped = self._through = False
        self._pausing = 0
        self._alone: int | None = None
        self.handed: deque[int] = deque()
        self.first: int | None = None
        self.pauses = 0

    def take(self, thread: int) -> tuple[Portion, Any] | None:
        """The next batch, for ``thread``; None at the end of the epoch.

        Raises:
            Stopped: another thread has ended the training.
        """
        with self._reading:
            while (taken := self._read(thread)) is not None:
                if self._enter(thread, taken[0]):
                    return taken
        return None

    def _read(self, thread: int) -> tuple[Portion, Any] | None:
        with self._lock:
            self._changed.wait_for(lambda: self._stopped or not (self._due or self._pausing))
            self._check()
            if self._through:
                return None
            self._busy.add(thread)
        taken = None
        try:
            taken = next(self._pairs, None)
        finally:
            if taken is None:
                with self._lock:
                    self._through = True
                    self._free(thread)
        return taken

    def _enter(self, thread: int, part: Portion) -> bool:
        """Whether there is something to be done for this worker; a part without a sample of its own is a step too."""
        with self._lock:
            if self._agreement is not None:
                self._agreement.open()
                plan = self._agreement.plan(ahead=len(self._in_hand))
                self._due = any(one.moment is Moment.STEP for one in plan.exchanges)
            self._in_hand[thread] = part
            if part.batch(self._rank) > 0:
                self.handed.append(part.iteration)
                return True
            self._over(thread)
            return False

    def finish(self, thread: int) -> bool:
        """The step of ``thread`` is over; waits where all threads do. False where it does not count any more.

        Raises:
            PeerError: somebody did not take part in the exchange that was due.
            TrainingError: an exchange beside the training has failed.
        """
        with self._lock:
            if self._stopped:
                self.leave(thread)
                return False
            due = self._due
            self._over(thread)
            if due:
                self._changed.wait_for(lambda: self._stopped or not self._due)
            return True

    def _over(self, thread: int) -> None:
        if self._agreement is not None:
            self._agreement.over(self._in_hand[thread])
        del self._in_hand[thread]
        if not self._in_hand:
            self._due = False  # it was that of the newest step, which has ended last
        self._free(thread)

    def _free(self, thread: int) -> None:
        self._busy.discard(thread)
        self._changed.notify_all()

    @contextmanager
    def paused(self, thread: int) -> Iterator[None]:
        """Inside, ``thread`` is the only one whose program runs; the others are between two steps, or wait here too.

        Raises:
            Stopped: another thread has ended the training.
        """
        with self._lock:
            self._pausing += 1
            self.pauses += 1
            self._free(thread)
        try:
            with self._lock:
                self._changed.wait_for(lambda: self._stopped or (not self._busy and self._alone is None))
                self._check()
                self._alone = thread
            yield
        finally:
            with self._lock:
                self._pausing -= 1
                if self._alone == thread:
                    self._alone = None
                self._busy.add(thread)
                self._changed.notify_all()

    def in_hand(self, thread: int) -> tuple[Portion, ...] | None:
        """The batches that were handed out and whose steps the agreement has not counted; None outside a pause."""
        with self._lock:
            return tuple(self._in_hand.values()) if self._alone == thread else None

    def stop(self, thread: int) -> None:
        """End the training of all threads, at the next batch of each."""
        with self._lock:
            self._stopped = True
            if self.first is None:
                self.first = thread
            self._changed.notify_all()

    def leave(self, thread: int) -> None:
        """The thread is gone: a step that it has not finished does not count."""
        with self._lock:
            self._in_hand.pop(thread, None)
            self._free(thread)

    def _check(self) -> None:
        if self._stopped:
            raise Stopped("another thread of this worker has ended the training: session.train raises its error")
