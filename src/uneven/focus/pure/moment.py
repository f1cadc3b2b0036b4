"""Times in queries: seconds since the stream began, or the time of day."""

from __future__ import annotations

import math
import re

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
    if isinstance(between[1], str) and isinstance(between[0], str) and high <= low:
        high += 86400.0  # the interval includes midnight
    if not low < high:
        raise ConfigError(f"between {between[0]} and {between[1]}: the end is not after the beginning")
    return low, high


def _clock(text: str) -> float:
    found = _CLOCK.fullmatch(text.strip())
    if found is None or int(found[1]) > 24 or int(found[2]) > 59:
        raise ConfigError(f"{text!r} is no time: give HH:MM, HH:MM:SS, or a number of seconds since the stream began")
    return int(found[1]) * 3600.0 + int(found[2]) * 60.0 + float(found[3] or 0)
