"""The queue that gives each of this worker's batches to one of several threads.

Threads take batches in the order of the samples and finish them in any order. Three things stop all threads:

* an exchange after a step, or a delayed outcome that enters: no further batch is taken until all steps up to it have
  finished; the thread that finishes last runs the exchange while the others wait;
* a pause: one thread has the replica to itself while the others are between two steps;
* the end: a thread has failed or was interrupted, and all threads leave at their next batch.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from uneven.errors import TrainingError
from uneven.policy.samples.order import Portion
from uneven.run.context.participants import Participants
from uneven.run.replicas.replica_sync import ReplicaSync


class Stopped(TrainingError):
    """The error in a thread's loop after another thread has ended the training; ``session.train`` raises the cause."""


class BatchQueue:
    """One epoch's batches for several threads."""

    def __init__(
        self, pairs: Iterator[tuple[Portion, Any]], rank: int, participants: Participants, agreement: ReplicaSync | None
    ) -> None:
        self._pairs = pairs  # parts and this worker's batches, in order
        self._rank = rank
        self._participants = participants  # they change while all threads have stopped for an exchange
        self._agreement = agreement  # counts the steps and exchanges parameters; None if nothing is exchanged
        self._reading = threading.Lock()  # held while a batch is read, so that batches come in order
        self._lock = threading.RLock()  # entered directly: Ctrl-C could interrupt Condition.__enter__ halfway
        self._changed = threading.Condition(self._lock)
        self._in_hand: dict[int, Portion] = {}  # thread → its batch, until the step has finished
        self._busy: set[int] = set()  # threads in a step or taking a batch, except those that wait for a pause
        self._due = self._stopped = self._through = False
        self._pausing = 0
        self._alone: int | None = None
        self.handed: deque[int] = deque()  # iterations in the order of their batches; the writer of a record pops it
        self.first: int | None = None  # the thread that ended the training first
        self.pauses = 0  # begun so far

    def take(self, thread: int) -> tuple[Portion, Any] | None:
        """Return the next batch, for ``thread``; None at the end of the epoch.

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
            self._busy.add(thread)  # before the lock is released, so that no pause starts while this thread reads
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
        """Open the step and return whether this worker has samples in it; a step without any finishes immediately."""
        with self._lock:
            self._participants.begins(part)
            if self._agreement is not None:
                self._due = self._agreement.enter(part, ahead=len(self._in_hand))
            self._in_hand[thread] = part
            if part.batch(self._rank) > 0:
                self.handed.append(part.iteration)
                return True
            self._over(thread)
            return False

    def finish(self, thread: int) -> bool:
        """Finish the step of ``thread``, wait for an exchange if one is due, and return whether the step counts.

        Raises:
            PeerError: a worker did not take part in the exchange that was due.
            TrainingError: a background exchange has failed.
        """
        with self._lock:
            if self._stopped:  # another thread has ended the training in the middle of this step
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
        if self._due and not self._in_hand:  # the exchange was the newest step's, and `over` has run it
            self._participants.step_over()
            self._due = False
        self._free(thread)

    def _free(self, thread: int) -> None:
        self._busy.discard(thread)
        self._changed.notify_all()

    def settle(self, thread: int, call: Callable[[], None]) -> None:
        """Call it when all steps have finished; ``thread`` is the one that reads, so no other takes a batch."""
        with self._lock:
            self._free(thread)  # not busy while it waits: a thread in a step may want a pause
            self._changed.wait_for(lambda: self._stopped or not (self._in_hand or self._pausing))
            self._check()
            self._busy.add(thread)
            call()

    @contextmanager
    def paused(self, thread: int) -> Iterator[None]:
        """Run the block while all other threads are between two steps, or wait for a pause too.

        Raises:
            Stopped: another thread has ended the training.
        """
        if self._alone == thread:  # a pause inside this one
            yield
            return
        with self._lock:
            self._pausing += 1
            self.pauses += 1
            self._free(thread)  # not busy while it waits: two threads that want a pause would block each other
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
        """Return the batches whose steps are not counted yet; None unless ``thread`` holds the pause."""
        with self._lock:
            return tuple(self._in_hand.values()) if self._alone == thread else None

    def stop(self, thread: int) -> None:
        with self._lock:
            self._stopped = True
            if self.first is None:
                self.first = thread
            self._changed.notify_all()

    def leave(self, thread: int) -> None:
        """Remove a thread; a step that it has not finished does not count."""
        with self._lock:
            self._in_hand.pop(thread, None)
            self._free(thread)

    def _check(self) -> None:
        if self._stopped:
            raise Stopped("another thread of this worker has ended the training: session.train raises its error")
