"""First in, first out: no trial is stopped. Pure."""

from __future__ import annotations

from uneven.search.rulings import GO_ON, Progress, Ruling
from uneven.search.schedulers.base import Scheduler


class Fifo(Scheduler):
    """The scheduler that trains every trial to its end, in the order of suggestion."""

    def on_result(self, progress: Progress) -> Ruling:
        return GO_ON
