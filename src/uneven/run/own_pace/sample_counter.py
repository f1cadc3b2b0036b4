"""The counters from which workers take their samples.

They lie in the store that the ranks met at: to add to a number there is one question and one answer. So a shard of the
parameter server that is started again has nothing of this to lose.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NoAnswer
from queue import SimpleQueue
from typing import Any

from uneven.data.paced import PacedSampler
from uneven.data.supply import EPOCHS, Interval, PendingRun, SamplesWanted
from uneven.errors import PeerError
from uneven.run.own_pace.store import SessionStore

_Task = tuple["_AskedRun", Callable[[], Interval | None]]


class StoredSampleCounter:
    """See :class:`uneven.data.supply.SampleCounter`.

    Args:
        timeout_s: how long an answer may take.

    Attributes:
        ahead: see there.
        sampler: of this worker's loader, once there is one.
        least: see there.
    """

    def __init__(self, store: SessionStore, timeout_s: float, *, ahead: bool) -> None:
        self.ahead = ahead
        self.sampler: PacedSampler | None = None
        self.least: int | None = None
        self._store = store
        self._timeout_s = timeout_s
        self._lives = 0  # states loaded so far, alike on every worker
        self._known: dict[int, tuple[int, list[Interval]]] = {}  # epoch → counter, and what is undone of it
        self._stopped = False
        self._errands: SimpleQueue[_Task | None] | None = None

    def take(self, epoch: int, wanted: SamplesWanted) -> PendingRun:
        """Move the counter of an epoch on; what it has passed. The answer may be a PeerError."""
        life = self._lives
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

    # ---------------------------------------------------------------- at a barrier of all
    def held(self) -> dict[str, Any]:
        """What this worker knows of the counters, and has taken and not trained on, as plain JSON-able data.

        Raises:
            PeerError: the store does not answer.
        """
        of: dict[str, Any] = {}
        epoch = 0
        if (sampler := self.sampler) is not None:
            epoch = sampler.epoch
            # Also of the epoch before, in which others may be: this worker may have taken the last samples of it.
            for one in range(max(0, epoch - 1), epoch + 1 + EPOCHS):
                undone = sampler.undone(one)  # first, as it may wait for what moves the counter on
                of[str(one)] = self.reached(one), undone
        return {"epoch": epoch, "of": of}

    def learn(self, words: Sequence[dict[str, Any]]) -> None:
        """What all workers hold, who take nothing meanwhile: the last counter that anybody has read is that of now."""
        self.least = min(word["epoch"] for word in words)
        for epoch in set().union(*(word["of"] for word in words)):
            said = [word["of"][epoch] for word in words if epoch in word["of"]]
            undone = [(first, last) for _, runs in said for first, last in runs]
            self._known[int(epoch)] = max(counter for counter, _ in said), undone

    def forget(self) -> None:
        """Others take again, so what was learnt no longer holds."""
        self._known, self.least = {}, None

    # ---------------------------------------------------------------- the end
    def stop(self) -> None:
        """Nothing more will be taken, but for a look at a counter."""
        self._stopped = True
        if self._errands is not None:
            self._errands.put(None)
            self._errands = None

    def _taken(self, life: int, epoch: int, wanted: SamplesWanted) -> Interval | None:
        return wanted.fresh(self._add(life, epoch, wanted.samples) - wanted.samples)

    def _add(self, life: int, epoch: int, samples: int) -> int:
        return self._store.add(f"taken/{life}/{epoch}", samples)

    def _errand(self) -> SimpleQueue[_Task | None]:
        """To the thread that asks; made when there is a first question."""
        if self._errands is None:
            self._errands = SimpleQueue()
            # Left behind where the store hangs; a pool's would keep the process from ending.
            threading.Thread(target=_run, args=(self._errands,), name="uneven-sample-counter", daemon=True).start()
            weakref.finalize(self, self._errands.put, None)
        return self._errands


class _AskedRun(Future["Interval | None"]):
    """Waited for no longer than others are."""

    def __init__(self, rank: int, timeout_s: float) -> None:
        super().__init__()
        self._rank, self._timeout_s = rank, timeout_s
        self._asked_s, self.took_s = time.perf_counter(), 0.0

    def come(self) -> None:
        self.took_s = time.perf_counter() - self._asked_s

    def result(self, timeout: float | None = None) -> Interval | None:
        """The answer.

        Raises:
            PeerError: there is none, or not in time.
        """
        try:
            return super().result(min(self._timeout_s, threading.TIMEOUT_MAX) if timeout is None else timeout)
        except NoAnswer:
            raise PeerError(
                f"rank {self._rank}: the store that the ranks met at, which hands out the samples, has not answered "
                f"for {self._timeout_s:g} s: the process that keeps it (the launcher, or rank 0 without one) hangs"
            ) from None


def _run(tasks: SimpleQueue[_Task | None]) -> None:
    while (task := tasks.get()) is not None:
        _do(task)
        del task  # it leads to a session, which may be over before there is another


def _do(task: _Task) -> None:
    answer, question = task
    try:
        run = question()
    except PeerError as error:
        answer.set_exception(error)
    else:
        answer.come()
        answer.set_result(run)
