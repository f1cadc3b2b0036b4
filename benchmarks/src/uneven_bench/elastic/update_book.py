"""A log of one worker's updates, which can strike the worker inside an update. Runs in the worker."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager

import uneven
from uneven.testing.inside import inside
from uneven_bench.elastic import updates
from uneven_bench.elastic.worker import LoggedWorker


class UpdateBook:
    """A hook on the updates that a session sends, set before its first batch."""

    digest = None

    def __init__(self, worker: LoggedWorker, session: uneven.Session) -> None:
        self._worker = worker
        self._session = session
        inside(session).updates(begins=self._begins, gave=self._ends, lost=self._is_lost)
        path = worker.folder / f"updates-{os.getpid()}.jsonl"
        self._log = path.open("w", buffering=1, encoding="utf-8")
        self._under_way: AbstractContextManager[None] | None = None

    def begins(self) -> None:
        """Write the first line, after the run has admitted this worker and before its first batch."""
        self._log.write(updates.first_line(os.getpid(), self._session.worker, self._worker.step) + "\n")

    def _begins(self, update: int) -> None:
        self._log.write(updates.line(updates.GIVES, update, self._worker.step) + "\n")
        self._under_way = self._worker.exchange()
        self._under_way.__enter__()

    def _ends(self, update: int) -> None:
        self._log.write(updates.line(updates.GAVE, update) + "\n")
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            under_way.__exit__(None, None, None)

    def _is_lost(self, worker: int, arrived: int) -> None:
        self._log.write(updates.line(updates.LOST, worker, arrived) + "\n")
