"""A log of one worker's merges, which can strike the worker inside a merge. Runs in the worker."""

from __future__ import annotations

import hashlib
import os
from contextlib import AbstractContextManager
from typing import Any

import uneven
from uneven_bench.elastic import merges
from uneven_bench.elastic.merges import LoggedMerge
from uneven_bench.elastic.worker import LoggedWorker


class MergeBook:
    """A hook on a session's exchanges, set before its first batch. ``digest``: of the newest merge's result."""

    def __init__(self, worker: LoggedWorker, session: uneven.Session) -> None:
        self.digest = ""
        self._worker = worker
        self._session = session
        elastic = session._loop.context.elastic
        assert elastic is not None, "merges are written down in elastic runs"
        self._recovery = elastic.recovery
        self._membership = elastic.membership
        self._enter = elastic.recovery.enter
        self._complete = elastic.recovery.complete
        elastic.recovery.enter = self._begins  # type: ignore[method-assign] # what is measured is inside
        elastic.recovery.complete = self._ends  # type: ignore[method-assign]
        path = worker.folder / f"merges-{os.getpid()}.jsonl"
        self._log = path.open("w", buffering=1, encoding="utf-8")
        self._under_way: AbstractContextManager[None] | None = None

    def begins(self) -> None:
        """Write the first line, after the run has admitted this worker and before its first batch."""
        new = self._membership.generation.came
        joined = str(self._session.worker) in new
        # A newcomer receives its state from the lowest member that was there before.
        donor = min(one for one in self._membership.members if str(one) not in new) if joined else -1
        told = merges.first_line(os.getpid(), self._session.worker, self._recovery.exchanges, donor)
        self._log.write(told + "\n")

    def _begins(self, at: Any) -> None:
        self._under_way = self._worker.exchange()
        self._under_way.__enter__()
        self._enter(at)

    def _ends(self, contributors: tuple[int, ...]) -> Any:
        number, at = self._recovery.exchanges, self._recovery.at
        assert at is not None
        groups = () if at.groups is None else at.groups(self._recovery.by, contributors)
        group = next((one for one in groups if self._session.worker in one), contributors)
        pieces = self._complete(contributors)
        self.digest = hashlib.sha256(pieces[0].sum.numpy().tobytes()).hexdigest()
        if at.settles >= 0:  # a mean that is only shown settles nothing, and the training does not use it
            merge = LoggedMerge(number, self._worker.step, contributors, self.digest, groups, group)
            self._log.write(merges.merge_line(merge) + "\n")
        if self._under_way is not None:
            self._under_way.__exit__(None, None, None)
            self._under_way = None
        return pieces
