"""The times of pictures, computed from time stamps that may be missing, jump or restart."""

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from uneven.errors import ConfigError

Moment = float | str  # seconds since the stream began, or "HH:MM" or "HH:MM:SS"

_CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}(?:\.\d+)?))?")


def seconds(between: tuple[Moment, Moment] | None, starts: str | None) -> tuple[float, float]:
    """Return the start and end of an interval in seconds since the stream began; None is the whole stream.

    Without ``starts``, a time of day counts from the stream's beginning.

    Raises:
        ConfigError: a value is not a time, or the end is not after the start.
    """
    if between is None:
        return -math.inf, math.inf
    origin = 0.0 if starts is None else _clock(starts)
    low, high = (_clock(one) - origin if isinstance(one, str) else float(one) for one in between)
    if isinstance(between[1], str) and isinstance(between[0], str):
        high += 86400.0 * (high <= low)  # the interval includes midnight
        if high <= 0.0:  # before the stream began: the next day is meant
            low, high = low + 86400.0, high + 86400.0
    if not low < high:
        raise ConfigError(f"between {between[0]} and {between[1]}: give an end that is after the beginning")
    return low, high


def _clock(text: str) -> float:
    found = _CLOCK.fullmatch(text.strip())
    if found is None or int(found[1]) > 24 or int(found[2]) > 59:
        raise ConfigError(f"{text!r} is not a time: give HH:MM, HH:MM:SS, or seconds since the beginning of the stream")
    return int(found[1]) * 3600.0 + int(found[2]) * 60.0 + float(found[3] or 0)


P = TypeVar("P")

_BACK_S, _FAR_S = 1.0, 86_400.0  # a time stamp this far before or after the last one belongs to another sequence


@dataclass(slots=True)
class FrameClock:
    """A converter of time stamps to seconds since the beginning of a stream."""

    due_s: float  # earlier pictures are not needed
    next_s: float = 0.0  # time of the next picture if it has no time stamp
    shift_s: float | None = None  # difference of times and time stamps; None maps the next time stamp to ``next_s``
    raw_s: float | None = None  # the last time stamp; None accepts any next one

    def read(self, raw_s: float | None, step_s: float, most_s: float = _FAR_S) -> float:
        """Return the time of a picture with time stamp ``raw_s``, about ``step_s`` before the next one."""
        time_s = self.next_s
        if raw_s is not None:
            # A jump back, or more than `most_s` ahead, starts a new sequence of time stamps.
            if self.shift_s is None or (self.raw_s is not None and not -_BACK_S <= raw_s - self.raw_s <= most_s):
                self.shift_s = time_s - raw_s
            time_s, self.raw_s = max(0.0, raw_s + self.shift_s), raw_s
        self.next_s = time_s + step_s
        return time_s

    def early(self, raw_s: float) -> bool:
        """Return whether the picture with this time stamp is not due yet."""
        return self.shift_s is not None and raw_s + self.shift_s + 1e-6 < self.due_s


def steady(pictures: Iterable[tuple[float | None, P]]) -> Iterator[tuple[float | None, P]]:
    """Remove time stamps that do not fit between their neighbours; each picture is held until the next one is known."""
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
