"""A log of one worker's merges, which can strike the worker inside a merge. Runs in the worker."""

from __future__ import annotations

import hashlib
import os
from contextlib import AbstractContextManager

import uneven
from uneven.testing.inside import Round, inside
from uneven_bench.elastic import merges
from uneven_bench.elastic.merges import LoggedMerge
from uneven_bench.elastic.worker import LoggedWorker


class MergeBook:
    """A hook on a session's exchanges, set before its first batch. ``digest``: of the newest merge's result."""

    def __init__(self, worker: LoggedWorker, session: uneven.Session) -> None:
        self.digest = ""
        self._worker = worker
        self._session = session
        self._inside = inside(session)
        assert self._inside.elastic is not None, "merges are written down in elastic runs"
        self._membership = self._inside.elastic.membership
        self._inside.rounds(self._begins, self._ends)
        path = worker.folder / f"merges-{os.getpid()}.jsonl"
        self._log = path.open("w", buffering=1, encoding="utf-8")
        self._under_way: AbstractContextManager[None] | None = None

    def begins(self) -> None:
        """Write the first line, after the run has admitted this worker and before its first batch."""
        new = self._membership.generation.came
        joined = str(self._session.worker) in new
        # A newcomer receives its state from the lowest member that was there before.
        donor = min(one for one in self._membership.members if str(one) not in new) if joined else -1
        told = merges.first_line(os.getpid(), self._session.worker, self._inside.exchanges, donor)
        self._log.write(told + "\n")

    def _begins(self, number: int) -> None:
        self._under_way = self._worker.exchange()
        self._under_way.__enter__()

    def _ends(self, made: Round) -> None:
        groups = made.groups or ()
        group = next((one for one in groups if self._session.worker in one), made.contributors)
        self.digest = hashlib.sha256(made.sums[0].numpy().tobytes()).hexdigest()
        if made.settles >= 0:  # a mean that is only shown settles nothing, and the training does not use it
            merge = LoggedMerge(made.number, self._worker.step, made.contributors, self.digest, groups, group)
            self._log.write(merges.merge_line(merge) + "\n")
        if self._under_way is not None:
            self._under_way.__exit__(None, None, None)
            self._under_way = None
