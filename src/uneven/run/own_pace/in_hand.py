"""The batch whose step is not over: an evaluation in its midst may give to others what was learnt from it already."""

from __future__ import annotations

from collections.abc import Callable

from uneven.data.order import Portion


class BatchInHand:
    """Has each batch noted as learnt once, when its step is over or before.

    Args:
        learnt: notes it.

    Attributes:
        part: None between two steps.
        trained: whether an optimizer has made a step on it.
    """

    def __init__(self, learnt: Callable[[Portion], object]) -> None:
        self.part: Portion | None = None
        self.trained = False
        self._learnt = learnt
        self._early: Portion | None = None  # what was noted before its step was over

    def begins(self, part: Portion) -> None:
        """A batch is handed out."""
        self.part, self.trained = part, False

    def learns(self) -> None:
        """What was learnt from the batch in hand, if there is one, is about to be given."""
        if self.part is not None and self.part != self._early:
            self._early = self.part
            self._learnt(self.part)

    def gives(self) -> int:
        """The same, where an optimizer has made a step on it.

        Returns:
            Steps in what is given that are not over, by which an update with them is another than the one before.
        """
        if self.part is None or not self.trained:
            return 0
        self.learns()
        return 1

    def ends(self, part: Portion) -> None:
        """A step is over."""
        if part != self._early:
            self._learnt(part)
        self.part = self._early = None
