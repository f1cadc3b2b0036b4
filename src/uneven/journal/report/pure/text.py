"""The formatting of numbers for people."""

import math
from collections.abc import Sequence


def seconds(value: float) -> str:
    """Format seconds: ``0.0123`` → ``12.3 ms``; NaN → a dash."""
    if not math.isfinite(value):
        return "–"
    if abs(value) < 1e-3:
        return f"{value * 1e6:.0f} µs"
    if abs(value) < 1:
        return f"{value * 1e3:.3g} ms" if abs(value) < 0.9995 else "1 s"
    return f"{value:.3g} s" if value < 100 else span(value)


def span(value: float) -> str:
    """Format a duration to the second: ``3725`` → ``1:02:05``."""
    if not math.isfinite(value):
        return "–"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def percent(value: float) -> str:
    """Format a share: ``0.127`` → ``13 %``, with one more digit below ten percent."""
    if not math.isfinite(value):
        return "–"
    return f"{value:.0%}".replace("%", " %") if round(value, 3) >= 0.1 else f"{value:.1%}".replace("%", " %")


def count(value: float) -> str:
    """Format a quantity in three or four digits: ``1234.5`` → ``1,234``."""
    if not math.isfinite(value):
        return "–"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def size(value: float) -> str:
    """Format bytes: ``3.2e9`` → ``3.2 GB``."""
    if not math.isfinite(value):
        return "–"
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value:.0f} B"


def parts_of(shares: Sequence[int]) -> str:
    """Format shares in one line; the least and the greatest if there are more than 16: ``237/158/79/38``."""
    return "/".join(map(str, shares)) if len(shares) <= 16 else f"{min(shares)} … {max(shares)}"
