"""Several steps that are taken in together, where none of them changes what the next one does.

Right after a step the caches hold the model, and all that is done for one step costs as much as for several. So within
a stride a step leaves nothing but two marks in time.
"""

from __future__ import annotations

from uneven.data.order import Part
from uneven.engine.agree import Agreement
from uneven.engine.books import Books
from uneven.engine.served import Served
from uneven.measure.clock import Mark

_MOST = 16
"""Steps in one stride at most."""

_LASTS_S = 0.07
"""Seconds that a stride takes at most: of the processor, where it computes, for it may be shared with others. An
exchange beside the training waits for the end of a stride, and what is done there takes a thousandth of that."""

_WITHIN_S = 1.0
"""And by the clock, for others may wait for this worker's shadow, and people for the journal."""


class Pace:
    """How long a stride may be, by how long the last one took. Pure.

    Times are in seconds: how long the thread that trains has computed, where it computes, and that of the clock.
    """

    def __init__(self) -> None:
        self._steps, self._spent_s, self._now_s = 0, 0.0, 0.0

    def start(self, steps: int, spent_s: float, now_s: float) -> None:
        """The training goes on, after ``steps`` and whatever else the thread has done."""
        self._steps, self._spent_s, self._now_s = steps, spent_s, now_s

    def next(self, steps: int, spent_s: float, now_s: float) -> int:
        """How many steps to take in together after ``steps`` of them; one at least."""
        taken, computed_s, took_s = steps - self._steps, spent_s - self._spent_s, now_s - self._now_s
        self.start(steps, spent_s, now_s)
        if computed_s <= 0.0 or took_s <= 0.0:
            return 1
        return max(1, min(_MOST, int(_LASTS_S * taken / computed_s), int(_WITHIN_S * taken / took_s)))


class Stride:
    """What is known of its steps. The fast loop, which touches it in every step, writes the attributes itself.

    Attributes:
        over: part of each step that is over, when it began and ended, and that end by the wall clock, in seconds.
        began: when the step in the user's hands began, if it belongs to the stride.
        left: steps that may still join, with the one at whose end all are taken in; 0 outside of a stride.
        shares: that all of them have.
    """

    def __init__(self) -> None:
        self.over: list[tuple[Part, Mark, Mark, float]] = []
        self.began: Mark = None
        self.left = 0
        self.shares: tuple[int, ...] = ()

    def end(self, books: Books, agreement: Agreement | Served | None, hand: Part | None) -> int:
        """Have all that are over taken in; how many these were.

        Args:
            hand: the step in the user's hands.
        """
        over = self.over.copy()
        self.over.clear()  # first, for a shadow must not count them twice
        if agreement is not None and over:
            agreement.took([part for part, *_ in over])
        for part, began, ended, ended_at_s in over:
            books.meter.took(part.iteration, began, ended)
            books.end(part, ended_at_s)
        if self.began is not None and hand is not None:
            books.meter.began(hand.iteration, self.began)
        self.began, self.left = None, 0
        return len(over)
