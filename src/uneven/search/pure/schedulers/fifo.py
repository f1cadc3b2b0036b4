"""First in, first out: no trial is stopped."""

from __future__ import annotations

from uneven.search.pure.decisions import GO_ON, Progress, Ruling
from uneven.search.pure.schedulers.scheduler import Scheduler


class Fifo(Scheduler):
    """The scheduler that trains every trial to its end, in the order of suggestion."""

    def on_result(self, progress: Progress) -> Ruling:
        return GO_ON
