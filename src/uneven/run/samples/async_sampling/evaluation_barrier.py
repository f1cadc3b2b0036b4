"""The barrier before an evaluation, at which each worker reports the samples that it holds."""

import json
import time
from collections.abc import Callable
from typing import Any

from uneven.errors import PeerError
from uneven.run.samples.async_sampling.sample_counter import StoredSampleCounter
from uneven.run.samples.async_sampling.session_store import SessionStore


class ShutdownHandshake:
    """The record of the workers that are done; a worker that serves others reads it before it ends.

    Both methods raise a PeerError if the store does not answer.
    """

    def __init__(self, store: SessionStore) -> None:
        self._store = store

    @property
    def others(self) -> list[int]:
        return [rank for rank in range(self._store.size) if rank != self._store.rank]

    def done(self) -> None:
        """Record that this worker needs no other worker any longer."""
        self._store.put(f"closed/{self._store.rank}", "")

    def is_done(self, rank: int) -> bool:
        return self._store.has(f"closed/{rank}")


_LOOK_S = 0.02


class EvaluationBarrier:
    """The barrier at which all workers arrive, read each other's reports, and leave; once per evaluation.

    Every method raises a PeerError if the store does not answer.

    Args:
        counter: this worker's; it reports the samples held here and takes in the reports of all workers.
        timeout_s: longest wait for the other workers.
        there: returns the workers that take part.
    """

    def __init__(
        self, store: SessionStore, counter: StoredSampleCounter, timeout_s: float, there: Callable[[], tuple[int, ...]]
    ) -> None:
        self.number = 0  # of arrivals of this worker
        self._there = there
        self._store = store
        self._counter = counter
        self._timeout_s = timeout_s

    def arrive(self) -> None:
        """Report to the other workers. This worker takes no samples until it leaves."""
        self.number += 1
        self._store.put(self._key(self._store.rank), json.dumps(self._counter.held()))
        # All workers have arrived at the previous barrier, so they have read the reports of the one before that.
        if self.number > 2:
            self._store.delete(self._key(self._store.rank, 2))

    def wait(self) -> None:
        """Wait until all workers have arrived; for runs whose membership does not change.

        Raises:
            PeerError: a worker has not arrived in time.
        """
        limit_s = time.monotonic() + self._timeout_s
        # This polls, because Ctrl-C does not interrupt the store's own wait.
        while not self._store.has(*map(self._key, self._there())):
            if time.monotonic() > limit_s:
                missing = [rank for rank, word in self._words().items() if word is None]
                raise PeerError(
                    f"session.evaluation_model() on rank {self._store.rank}: rank {', '.join(map(str, missing))} did "
                    f"not enter it within {self._timeout_s:g} s: every worker must enter it equally often before it "
                    "closes its session. Workers take different numbers of steps: enter it at the end of epochs"
                )
            time.sleep(_LOOK_S)

    def meet(self) -> list[int]:
        """Pass the reports of all workers to the counter; return the ranks without a report, which have failed."""
        words = self._words()
        self._counter.learn([word for word in words.values() if word is not None])
        return [rank for rank, word in words.items() if word is None]

    def leave(self) -> None:
        self._counter.forget()

    def _words(self) -> dict[int, dict[str, Any] | None]:
        there = self._there()  # once: another thread may remove a worker from it
        texts = self._store.texts([*map(self._key, there)])
        return {rank: None if text is None else json.loads(text) for rank, text in zip(there, texts, strict=True)}

    def _key(self, rank: int, back: int = 0) -> str:
        return f"word/{self.number - back}/{rank}"
