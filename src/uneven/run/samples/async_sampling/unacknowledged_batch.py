"""The batch whose step has not finished: an evaluation during the step may already send its update."""

from __future__ import annotations

from collections.abc import Callable

from uneven.policy.samples.order import Portion


class BatchInHand:
    """The recorder that passes each batch to ``learnt`` once, at the end of its step or earlier."""

    def __init__(self, learnt: Callable[[Portion], object]) -> None:
        self.part: Portion | None = None  # None between two steps
        self.trained = False  # whether an optimizer has made a step on the batch
        self._learnt = learnt
        self._early: Portion | None = None  # a batch recorded before the end of its step

    def begins(self, part: Portion) -> None:
        self.part, self.trained = part, False

    def learns(self) -> None:
        """Record the current batch now, because its update is about to be sent."""
        if self.part is not None and self.part != self._early:
            self._early = self.part
            self._learnt(self.part)

    def gives(self) -> int:
        """Record the current batch if an optimizer has made a step on it; return the unfinished steps, 0 or 1."""
        if self.part is None or not self.trained:
            return 0
        self.learns()
        return 1  # the caller adds it to the clock, so that this update differs from the one before

    def ends(self, part: Portion) -> None:
        if part != self._early:
            self._learnt(part)
        self.part = self._early = None
