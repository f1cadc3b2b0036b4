"""The counters from which workers take their samples, one an epoch.

They are in the rendezvous store, because adding to a number there is one round trip. A parameter-server shard that
restarts therefore loses none of them.
"""

import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NoAnswer
from queue import SimpleQueue
from typing import Any

from uneven.errors import PeerError
from uneven.policy.samples.paced import PacedSampler
from uneven.policy.samples.supply import EPOCHS, Interval, PendingRun, SamplesWanted
from uneven.run.samples.async_sampling.session_store import SessionStore

_Task = tuple["_AskedRun", Callable[[], Interval | None]]


class StoredSampleCounter:
    """The counters of one worker; implements :class:`uneven.policy.samples.supply.SampleCounter`."""

    def __init__(self, store: SessionStore, timeout_s: float, *, ahead: bool) -> None:
        self.ahead = ahead
        self.sampler: PacedSampler | None = None  # of this worker's loader
        self.least: int | None = None
        self._store = store
        self._timeout_s = timeout_s  # longest wait for an answer
        self._lives = 0  # states loaded so far, the same on every worker
        self._known: dict[int, tuple[int, list[Interval]]] = {}  # epoch → counter, and its runs not trained on
        self._stopped = False
        self._errands: SimpleQueue[_Task | None] | None = None

    def take(self, epoch: int, wanted: SamplesWanted) -> PendingRun:
        """Advance the counter of an epoch; the pending result is the run it has passed, or a PeerError."""
        life = self._lives  # now: a state may be loaded before the thread asks
        answer = _AskedRun(self._store.rank, self._timeout_s)
        task = answer, lambda: self._taken(life, epoch, wanted)
        if self._store.size == 1 or self._stopped:
            _do(task)
        else:
            self._errand().put(task)
        return answer

    def reached(self, epoch: int) -> int:
        return self._add(self._lives, epoch, 0)

    def restart(self) -> None:
        self._lives += 1

    def known(self, epoch: int) -> tuple[int, list[Interval]] | None:
        return self._known.get(epoch)

    def held(self) -> dict[str, Any]:
        """Return the counters this worker has read and its runs not trained on, as JSON-able data.

        Raises:
            PeerError: the store does not answer.
        """
        of: dict[str, Any] = {}
        epoch = 0
        if (sampler := self.sampler) is not None:
            epoch = sampler.epoch
            # The previous epoch too: other workers may still be in it, and this one may have taken its last samples.
            for one in range(max(0, epoch - 1), epoch + 1 + EPOCHS):
                undone = sampler.undone(one)  # first, because it may wait for an answer that advances the counter
                of[str(one)] = self.reached(one), undone
        return {"epoch": epoch, "of": of}

    def learn(self, words: Sequence[dict[str, Any]]) -> None:
        """Take in the reports of all workers, which take no samples during the barrier."""
        self.least = min(word["epoch"] for word in words)
        for epoch in set().union(*(word["of"] for word in words)):
            said = [word["of"][epoch] for word in words if epoch in word["of"]]
            undone = [(first, last) for _, runs in said for first, last in runs]
            # No worker takes samples now, so the greatest counter that any of them has read is the current one.
            self._known[int(epoch)] = max(counter for counter, _ in said), undone

    def forget(self) -> None:
        """Drop the reports, because workers take samples again."""
        self._known, self.least = {}, None

    def stop(self) -> None:
        """Stop taking samples; reading a counter still works."""
        self._stopped = True
        if self._errands is not None:
            self._errands.put(None)
            self._errands = None

    def _taken(self, life: int, epoch: int, wanted: SamplesWanted) -> Interval | None:
        return wanted.fresh(self._add(life, epoch, wanted.samples) - wanted.samples)

    def _add(self, life: int, epoch: int, samples: int) -> int:
        return self._store.add(f"taken/{life}/{epoch}", samples)

    def _errand(self) -> SimpleQueue[_Task | None]:
        """Return the queue of the thread that asks the store, which starts with the first question."""
        if self._errands is None:
            self._errands = SimpleQueue()
            # A daemon thread, because a pool's thread would keep the process alive if the store hangs.
            threading.Thread(target=_run, args=(self._errands,), name="uneven-sample-counter", daemon=True).start()
            weakref.finalize(self, self._errands.put, None)
        return self._errands


class _AskedRun(Future["Interval | None"]):
    """The pending answer of the store; waiting for it ends after ``timeout_s``."""

    def __init__(self, rank: int, timeout_s: float) -> None:
        super().__init__()
        self._rank = rank
        self._timeout_s = timeout_s
        self._asked_s = time.perf_counter()
        self.took_s = 0.0

    def come(self) -> None:
        self.took_s = time.perf_counter() - self._asked_s

    def result(self, timeout: float | None = None) -> Interval | None:
        """Return the run that was taken, None if nothing is left.

        Raises:
            PeerError: the store has failed, or has not answered in time.
        """
        try:
            return super().result(min(self._timeout_s, threading.TIMEOUT_MAX) if timeout is None else timeout)
        except NoAnswer:
            raise PeerError(
                f"rank {self._rank}: the store of the run, which assigns the samples, has not answered for "
                f"{self._timeout_s:g} s: its process (the launcher, or rank 0 without one) hangs"
            ) from None


def _run(tasks: SimpleQueue[_Task | None]) -> None:
    while (task := tasks.get()) is not None:
        _do(task)
        del task  # it references a session, which could not be collected until the next task arrives


def _do(task: _Task) -> None:
    answer, question = task
    try:
        run = question()
    except PeerError as error:
        answer.set_exception(error)
    else:
        answer.come()
        answer.set_result(run)
