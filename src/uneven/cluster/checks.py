"""Checks that the parts of a description share. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from uneven.errors import ConfigError


def once(what: str, names: Iterable[str]) -> None:
    """Refuse a name that is there twice."""
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise ConfigError(f"{what} {twice[0]!r} is there more than once: give each a name of its own")


def positive(where: str, key: str, value: float) -> None:
    """Refuse zero, negative and infinite values."""
    if not (math.isfinite(value) and value > 0):
        raise ConfigError(f"{where}: {key} = {value!r}: it must be positive and finite")


def not_negative(where: str, key: str, value: float) -> None:
    """Refuse negative and infinite values."""
    if not (math.isfinite(value) and value >= 0):
        raise ConfigError(f"{where}: {key} = {value!r}: it must be zero or more, and finite")
