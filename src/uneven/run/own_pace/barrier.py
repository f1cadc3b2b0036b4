"""The barrier before an evaluation, at which each worker leaves word of the samples that it holds."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from uneven.errors import PeerError
from uneven.run.own_pace.sample_counter import StoredSampleCounter
from uneven.run.own_pace.store import SessionStore

_LOOK_S = 0.02


class EvaluationBarrier:
    """All workers arrive, read each other's words, and leave; as often as there are evaluations.

    Every method raises a PeerError if the store does not answer.

    Args:
        counter: of this worker, which says what it holds and hears what all hold.
        timeout_s: how long others may keep this worker waiting.
        there: workers that take part.

    Attributes:
        number: how often this worker has arrived.
    """

    def __init__(
        self, store: SessionStore, counter: StoredSampleCounter, timeout_s: float, there: Callable[[], tuple[int, ...]]
    ) -> None:
        self.number = 0
        self._there = there
        self._store = store
        self._counter = counter
        self._timeout_s = timeout_s

    def arrive(self) -> None:
        """Leave word for the others. This worker takes nothing more until it leaves."""
        self.number += 1
        self._store.put(self._key(self._store.rank, self.number), json.dumps(self._counter.held()))
        if self.number > 2:  # all were at the one before, so all have read the words of that before it
            self._store.delete(self._key(self._store.rank, self.number - 2))

    def wait(self) -> None:
        """Until all have arrived, where nobody may be gone.

        Raises:
            PeerError: a worker has not arrived in time.
        """
        limit_s = time.monotonic() + self._timeout_s
        while not self._store.has(*self._keys()):  # not the store's own wait, which Ctrl-C does not end
            if time.monotonic() > limit_s:
                missing = [rank for rank, word in self._words().items() if word is None]
                raise PeerError(
                    f"session.evaluated() on rank {self._store.rank}: rank {', '.join(map(str, missing))} did not come "
                    f"to it within {self._timeout_s:g} s: every worker has to enter it as often, before it closes its "
                    f"session. At their own pace workers take different numbers of steps: enter it at the end of epochs"
                )
            time.sleep(_LOOK_S)

    def meet(self) -> list[int]:
        """Read the words of all, so that the counter knows what everybody holds.

        Returns:
            Ranks that have left none: they are gone.
        """
        words = self._words()
        self._counter.learn([word for word in words.values() if word is not None])
        return [rank for rank, word in words.items() if word is None]

    def leave(self) -> None:
        """The evaluation is over; others take samples again."""
        self._counter.forget()

    def _words(self) -> dict[int, dict[str, Any] | None]:
        texts = zip(self._there(), self._store.texts(self._keys()), strict=True)
        return {rank: None if text is None else json.loads(text) for rank, text in texts}

    def _keys(self) -> list[str]:
        return [self._key(rank, self.number) for rank in self._there()]

    @staticmethod
    def _key(rank: int, number: int) -> str:
        return f"word/{number}/{rank}"
