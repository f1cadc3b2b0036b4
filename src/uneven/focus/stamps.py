"""Times of pictures, by time stamps that may be missing, jump or begin again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

P = TypeVar("P")

_BACK_S, _FAR_S = 1.0, 86_400.0
"""A time stamp that is more than this before or after the last one belongs to another row."""


@dataclass(slots=True)
class FrameClock:
    """Turns time stamps into times since the beginning of a stream.

    Attributes:
        due_s: pictures before it are not asked for.
        next_s: time of the next picture, if its time stamp does not tell.
        shift_s: from time stamps to times; None takes the next time stamp for ``next_s``.
        raw_s: the last time stamp; None trusts the next one.
    """

    due_s: float
    next_s: float = 0.0
    shift_s: float | None = None
    raw_s: float | None = None

    def read(self, raw_s: float | None, step_s: float, most_s: float = _FAR_S) -> float:
        """Give the time of a picture.

        Args:
            raw_s: its time stamp.
            step_s: from this picture to the next one, as a guess.
            most_s: a time stamp may be this much after the last one.
        """
        time_s = self.next_s
        if raw_s is not None:
            if self.shift_s is None or (self.raw_s is not None and not -_BACK_S <= raw_s - self.raw_s <= most_s):
                self.shift_s = time_s - raw_s
            time_s, self.raw_s = max(0.0, raw_s + self.shift_s), raw_s
        self.next_s = time_s + step_s
        return time_s

    def early(self, raw_s: float) -> bool:
        """Whether the picture with a time stamp is not due yet."""
        return self.shift_s is not None and raw_s + self.shift_s + 1e-6 < self.due_s


def steady(pictures: Iterable[tuple[float | None, P]]) -> Iterator[tuple[float | None, P]]:
    """Take away each time stamp that leaves the row of its neighbours; the next picture has to be known for that."""
    before: float | None = None
    held: list[tuple[float | None, P]] = []
    for raw_s, picture in pictures:
        for one_s, one in held:
            stray = False
            if before is not None and one_s is not None and raw_s is not None and before - _BACK_S <= raw_s:
                stray = not before - _BACK_S <= one_s <= max(before, raw_s) + _BACK_S
            before = before if stray else one_s
            yield None if stray else one_s, one
        held = [(raw_s, picture)]
    yield from held
