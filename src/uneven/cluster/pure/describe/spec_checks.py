"""Checks that the parts of a description share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from uneven.errors import ConfigError
from uneven.policy.core.tables import shown


def once(what: str, names: Iterable[str]) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise ConfigError(f"{what} {twice[0]!r} is there more than once: give each a name of its own")


LEAST, MOST = 1e-18, 1e18  # the bounds of positive values, so that products and quotients are finite
LONGEST_S = 1e9  # the longest time, 31 years: in sums of such times a float still resolves microseconds


def positive(where: str, key: str, value: float) -> None:
    """Raise `ConfigError` for zero, negative and implausible values; a ``key`` that ends in ``_s`` is a time."""
    if not LEAST <= value <= _most(key):
        raise ConfigError(f"{where}: {key} = {shown(value)}: it must be positive, from {LEAST:g} to {_most(key):g}")


def not_negative(where: str, key: str, value: float) -> None:
    """Raise `ConfigError` for negative and implausible values; a ``key`` that ends in ``_s`` is a time."""
    if not 0 <= value <= _most(key):
        raise ConfigError(f"{where}: {key} = {shown(value)}: it must be zero or more, and at most {_most(key):g}")


def _most(key: str) -> float:
    return LONGEST_S if key.endswith("_s") and not key.endswith("per_s") else MOST
