"""The counters from which workers take their samples, and what they tell each other beside the parameter server.

They lie in the store that the ranks met at, which the launcher keeps (or rank 0 where there is none). Adding to a
number there is one question and one answer. A shard that is started again so has nothing of this to lose.
"""

from __future__ import annotations

import json
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NoAnswer
from queue import SimpleQueue
from typing import Any

from torch._C._distributed_c10d import HashStore
from torch.distributed import distributed_c10d as c10d

from uneven.data.paced import PacedSampler
from uneven.data.supply import EPOCHS, Interval, PendingCount
from uneven.errors import PeerError

_Task = tuple["_Answer", Callable[[], int]]
_Word = dict[str, Any]

_LOOK_S = 0.02


class StoredHandOut:
    """See :class:`uneven.data.supply.HandOut`.

    Args:
        rank, size: this worker, and how many there are; with one, the store is in this process.
        timeout_s: how long the others may keep this worker waiting for their word.

    Attributes:
        ahead: see there.
        sampler: of this worker's loader, once there is one.
    """

    def __init__(self, rank: int, size: int, timeout_s: float, *, ahead: bool) -> None:
        self.rank = rank
        self.size = size
        self.ahead = ahead
        self._timeout_s = timeout_s
        self.sampler: PacedSampler | None = None
        self._lives = 0  # states loaded so far, alike on every worker
        self._told: dict[int, tuple[int, list[Interval]]] = {}  # epoch → counter, and what is undone of it
        self._least: int | None = None
        self._stopped = False
        self._errands: SimpleQueue[_Task | None] | None = None
        store: c10d.Store = c10d._get_default_store() if size > 1 else HashStore()
        number = store.add(f"uneven/hand-outs/{rank}", 1)  # tells apart the sessions that use one store
        self._store = c10d.PrefixStore(f"uneven/hand-out/{number}", store)

    def take(self, epoch: int, samples: int) -> PendingCount:
        """Move the counter of an epoch on by so many; where it was before. The answer may be a PeerError."""
        life = self._lives
        answer = _Answer(self.rank, self._timeout_s)
        task = answer, lambda: self._add(life, epoch, samples) - samples
        if self.size == 1 or self._stopped:
            _do(task)
        else:
            self._errand().put(task)
        return answer

    def anew(self) -> None:
        """Count from 0 again; every worker says so, after it has loaded a state."""
        self._lives += 1

    def told(self, epoch: int) -> tuple[int, list[Interval]] | None:
        """As of the meeting that all workers are in; None outside of one."""
        return self._told.get(epoch)

    @property
    def least(self) -> int | None:
        """In a meeting, the first epoch that a worker is in."""
        return self._least

    def begin(self, sampler: PacedSampler | None, lower: int) -> None:
        """There is a loader; no batch of anybody is to be smaller than ``lower``."""
        self.sampler = sampler
        if sampler is not None:
            sampler.at_least(lower)

    def come(self, meeting: int) -> None:
        """Before a meeting, at which this worker takes nothing more until it has parted: leave word for the others.

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
                of[str(one)] = self._add(self._lives, one, 0), undone
        word = {"epoch": epoch, "of": of}
        self._ask(lambda: self._store.set(_word(self.rank, meeting), json.dumps(word)))
        if meeting > 2:  # all were at the one before, so all have read the words of that before it
            self._ask(lambda: self._store.delete_key(_word(self.rank, meeting - 2)))

    def meet(self, meeting: int) -> list[int]:
        """At the meeting: read the words of all. The last counter that anybody has read is that of now.

        Returns:
            Ranks that have left none: they are gone.

        Raises:
            PeerError: the store does not answer.
        """
        found = self._found(meeting)
        words = [word for word in found if word is not None]
        self._least = min(word["epoch"] for word in words)
        for epoch in set().union(*(word["of"] for word in words)):
            said = [word["of"][epoch] for word in words if epoch in word["of"]]
            undone = [(first, last) for _, runs in said for first, last in runs]
            self._told[int(epoch)] = max(counter for counter, _ in said), undone
        return [rank for rank, word in enumerate(found) if word is None]

    def part(self) -> None:
        """The meeting is over; others go on to take."""
        self._told, self._least = {}, None

    def wait_for_words(self, meeting: int) -> None:
        """Wait until everybody has left word, where nobody may be gone.

        Raises:
            PeerError: somebody has not in time; or the store does not answer.
        """
        keys = [_word(rank, meeting) for rank in range(self.size)]
        limit_s = time.monotonic() + self._timeout_s
        while not self._here(keys):  # not the store's own wait, which Ctrl-C does not end
            if time.monotonic() > limit_s:
                missing = [rank for rank, word in enumerate(self._found(meeting)) if word is None]
                raise PeerError(
                    f"session.evaluated() on rank {self.rank}: rank {', '.join(map(str, missing))} did not come to it "
                    f"within {self._timeout_s:g} s: every worker has to enter it as often, before it closes its "
                    f"session. At their own pace workers take different numbers of steps: enter it at the end of epochs"
                )
            time.sleep(_LOOK_S)

    def stop(self) -> None:
        """Nothing more will be taken, but for a look at a counter."""
        self._stopped = True
        if self._errands is not None:
            self._errands.put(None)
            self._errands = None

    def close(self) -> None:
        """This worker needs nothing more of anybody.

        Raises:
            PeerError: the store does not answer.
        """
        self._ask(lambda: self._store.set(f"closed/{self.rank}", ""))

    def closed(self, rank: int) -> bool:
        """Whether a worker has said so.

        Raises:
            PeerError: the store does not answer.
        """
        return self._here([f"closed/{rank}"])

    def _found(self, meeting: int) -> list[_Word | None]:
        """The word that each rank has left for a meeting. Two questions where all have, also with many ranks."""
        keys = [_word(rank, meeting) for rank in range(self.size)]
        here = [True] * self.size if self._here(keys) else [self._here([key]) for key in keys]
        there = [key for key, word in zip(keys, here, strict=True) if word]
        texts = iter(self._ask(lambda: self._store.multi_get(there)))
        return [json.loads(next(texts)) if word else None for word in here]

    def _here(self, keys: list[str]) -> bool:
        return bool(self._ask(lambda: self._store.check(keys)))

    def _add(self, life: int, epoch: int, samples: int) -> int:
        return int(self._ask(lambda: self._store.add(f"taken/{life}/{epoch}", samples)))

    def _errand(self) -> SimpleQueue[_Task | None]:
        """To the thread that asks; made when there is a first question."""
        if self._errands is None:
            self._errands = SimpleQueue()
            # Left behind where the store hangs; a pool's would keep the process from ending.
            threading.Thread(target=_run, args=(self._errands,), name="uneven-hand-out", daemon=True).start()
            weakref.finalize(self, self._errands.put, None)
        return self._errands

    def _ask(self, question: Any) -> Any:
        try:
            return question()
        except RuntimeError as error:
            raise PeerError(
                f"rank {self.rank}: the store that the ranks met at, which hands out the samples, does not answer: the "
                f"process that keeps it (the launcher, or rank 0 without one) has ended "
                f"({str(error).strip().splitlines()[0]})"
            ) from error


class _Answer(Future[int]):
    """Waited for no longer than others are."""

    def __init__(self, rank: int, timeout_s: float) -> None:
        super().__init__()
        self._rank, self._timeout_s = rank, timeout_s
        self._asked_s, self.took_s = time.perf_counter(), 0.0

    def come(self) -> None:
        """It is about to be set."""
        self.took_s = time.perf_counter() - self._asked_s

    def result(self, timeout: float | None = None) -> int:
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


def _word(rank: int, meeting: int) -> str:
    return f"word/{meeting}/{rank}"


def _run(tasks: SimpleQueue[_Task | None]) -> None:
    while (task := tasks.get()) is not None:
        _do(task)
        del task  # it leads to a session, which may be over before there is another


def _do(task: _Task) -> None:
    answer, question = task
    try:
        number = question()
    except PeerError as error:
        answer.set_exception(error)
    else:
        answer.come()
        answer.set_result(number)
