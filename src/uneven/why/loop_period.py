"""The steps of a loop without an optimizer: the shortest period in its sequence of collective operations."""

import sys
from collections.abc import Hashable, Sequence
from types import FrameType

_SEARCHED = 24  # meetings before the first search; a search without a result waits for as many again
_MOST = 2_000  # meetings that are kept; a loop with a longer period is not measured


class LoopPeriod:
    """Reports the end of each step, once the period is known."""

    def __init__(self) -> None:
        self._seen: list[Hashable] = []
        self._period = 0
        self._count = 0

    def ended(self, issued: Hashable) -> bool:
        """Count a meeting, which the caller of this method's caller has waited for; return if a step ends with it.

        Args:
            issued: the last operation that torch has reported, as (name, bytes); None if this torch reports none.
        """
        if self._period:
            self._count += 1
            return self._count % self._period == 0
        if len(self._seen) < _MOST:
            self._seen.append((issued, _signature(sys._getframe(2))))
            if len(self._seen) % _SEARCHED == 0:
                self._period = period(self._seen)
        return False


def period(seen: Sequence[Hashable]) -> int:
    """Return the length of the shortest pattern that the second half of a sequence repeats at least three times, or
    0."""
    tail = seen[len(seen) // 2 :]
    for length in range(1, len(tail) // 3 + 1):
        if all(one == other for one, other in zip(tail, tail[length:], strict=False)):
            return length
    return 0


def _signature(frame: FrameType | None) -> Hashable:
    """Return the line of the user's code that waits, and the size of the tensor that torch was given there."""
    size = 0
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if not name.startswith(("torch.", "uneven.why")):
            return frame.f_code.co_filename, frame.f_lineno, size
        tensor = frame.f_locals.get("tensor")
        size = size or getattr(tensor, "nbytes", 0)
        frame = frame.f_back
    return size
