"""First in, first out. Pure."""

from __future__ import annotations

from uneven.search.rulings import GO_ON, Progress, Ruling
from uneven.search.schedulers.base import Scheduler


class Fifo(Scheduler):
    """Every trial is trained to its end, in the order in which they were suggested."""

    def on_result(self, progress: Progress) -> Ruling:
        return GO_ON
