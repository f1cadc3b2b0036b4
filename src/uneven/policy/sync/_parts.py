"""Helpers for policies: argument checks and cached plans."""

import math
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from uneven.errors import ConfigError
from uneven.policy.core.actions import StepPlan
from uneven.policy.core.views import SyncView

Members = tuple[int, ...]
Answer = TypeVar("Answer")

NOTHING = StepPlan()  # the plan of a step without exchanges and without waits
_MOST_KEPT = 1024  # plans
_MOST_PHASES = 16  # tables of answers


class Remembered(Generic[Answer]):
    """A cache of ``make(members)``, keyed by the identity of the tuple."""

    def __init__(self, make: Callable[[Members], Answer]) -> None:
        self._make = make
        self._known: dict[int, tuple[Members, Answer]] = {}  # by id(), which is safe while the tuple is held

    def __call__(self, members: Members) -> Answer:
        # A policy plans before every step. Hashing or comparing ten thousand ranks would cost more than the plan, so
        # the key is the object. An equal tuple that is another object gets an equal answer, computed again.
        found = self._known.get(id(members))
        if found is not None:
            return found[1]
        if len(self._known) >= _MOST_KEPT:
            self._known.clear()
        answer = self._make(members)
        self._known[id(members)] = (members, answer)
        return answer


class PerRank(Generic[Answer]):
    """A cache with one answer per rank, recomputed when members or (with ``looks_at_sites``) sites change."""

    def __init__(self, make: Callable[[SyncView, int], dict[int, Answer]], *, looks_at_sites: bool) -> None:
        self._make = make
        self._looks_at_sites = looks_at_sites
        self._members: Members = ()
        self._sites: Mapping[int, str] = {}
        self._tables: dict[int, dict[int, Answer]] = {}

    def __call__(self, view: SyncView, phase: int) -> Answer:
        # Identity first: comparing for equality reads every member.
        same = view.members is self._members or view.members == self._members
        if self._looks_at_sites:
            same = same and (view.sites is self._sites or view.sites == self._sites)
        if not same:
            # A policy repeats a few phases, but all of its tables are valid for these members and sites only.
            self._tables.clear()
            self._members, self._sites = view.members, view.sites
        table = self._tables.get(phase)
        if table is None:
            if len(self._tables) >= _MOST_PHASES:
                # Random groups have a new phase in each turn; without a limit the tables would fill the memory.
                del self._tables[next(iter(self._tables))]
            table = self._tables[phase] = self._make(view, phase)
        return table[view.rank]


def whole(policy: str, key: str, value: object, least: int) -> int:
    """Return the value, or raise ``ConfigError`` if it is not an integer of at least ``least``."""
    # True is an int in Python, but ``every=true`` in a configuration is a mistake.
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{policy}: {key} = {value!r} must be a whole number, at least {least}")
    return value


def number(policy: str, key: str, value: object, within: str) -> float:
    """Return the value as a float if it is in an interval such as ``"(0, 1]"``, or raise ``ConfigError``."""
    low, high = (float(end) for end in within[1:-1].split(","))
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        above = value > low if within[0] == "(" else value >= low
        below = value < high if within[-1] == ")" else value <= high
        if above and below:
            return float(value)
    raise ConfigError(f"{policy}: {key} = {value!r} must be a number in {within}")


def flag(policy: str, key: str, value: object) -> bool:
    """Return the value, or raise ``ConfigError`` if it is not a boolean."""
    if not isinstance(value, bool):
        raise ConfigError(f"{policy}: {key} = {value!r} must be true or false")
    return value
