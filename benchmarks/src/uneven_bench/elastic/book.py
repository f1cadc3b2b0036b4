"""Logs of one worker's merges or updates, which can strike the worker inside one. Run in the worker."""

import hashlib
import os
from contextlib import ExitStack
from dataclasses import astuple
from typing import Any

import uneven
from uneven_bench.elastic.logs import line
from uneven_bench.elastic.merges import LoggedMerge
from uneven_bench.elastic.updates import GAVE, GIVES, LOST
from uneven_bench.elastic.worker import LoggedWorker
from uneven_bench.inside import Round, inside


class _Book:
    """A hook on a session's exchanges, set before its first batch."""

    kind = ""

    def __init__(self, worker: LoggedWorker, session: uneven.Session) -> None:
        self._worker = worker
        self._session = session
        path = worker.folder / f"{self.kind}-{os.getpid()}.jsonl"
        self._log = path.open("w", buffering=1, encoding="utf-8")
        self._under_way = ExitStack()

    def _line(self, *told: Any) -> None:
        self._log.write(line(told))


class MergeBook(_Book):
    """A log of merges. ``digest``: of the newest merge's result."""

    kind = "merges"

    def __init__(self, worker: LoggedWorker, session: uneven.Session) -> None:
        super().__init__(worker, session)
        self.digest = ""
        self._inside = inside(session)
        assert self._inside.elastic is not None, "merges are written down in elastic runs"
        self._membership = self._inside.elastic.membership
        self._inside.rounds(self._begins, self._ends)

    def begins(self) -> None:
        """Write the first line, after the run has admitted this worker and before its first batch."""
        new = self._membership.generation.came
        joined = str(self._session.worker) in new
        # A newcomer receives its state from the lowest member that was there before.
        donor = min(one for one in self._membership.members if str(one) not in new) if joined else -1
        self._line(os.getpid(), self._session.worker, self._inside.exchanges, donor)

    def _begins(self, number: int) -> None:
        self._under_way.enter_context(self._worker.exchange())

    def _ends(self, made: Round) -> None:
        groups = made.groups or ()
        group = next((one for one in groups if self._session.worker in one), made.contributors)
        self.digest = hashlib.sha256(made.sums[0].numpy().tobytes()).hexdigest()
        if made.settles >= 0:  # a mean that is only shown settles nothing, and the training does not use it
            merge = LoggedMerge(made.number, self._worker.step, made.contributors, self.digest, groups, group)
            self._line(*astuple(merge))
        self._under_way.close()


class UpdateBook(_Book):
    """A log of the updates that a session sends."""

    kind = "updates"
    digest = None

    def __init__(self, worker: LoggedWorker, session: uneven.Session) -> None:
        super().__init__(worker, session)
        inside(session).updates(begins=self._begins, gave=self._ends, lost=self._is_lost)

    def begins(self) -> None:
        """Write the first line, after the run has admitted this worker and before its first batch."""
        self._line(os.getpid(), self._session.worker, self._worker.step)

    def _begins(self, update: int) -> None:
        self._line(GIVES, update, self._worker.step)
        self._under_way.enter_context(self._worker.exchange())

    def _ends(self, update: int) -> None:
        self._line(GAVE, update)
        self._under_way.close()

    def _is_lost(self, worker: int, arrived: int) -> None:
        self._line(LOST, worker, arrived)
