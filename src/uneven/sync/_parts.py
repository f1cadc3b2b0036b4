"""What the policies are made of: checked arguments, and plans that are made once. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from uneven.core.actions import StepPlan
from uneven.core.views import SyncView
from uneven.errors import ConfigError

Members = tuple[int, ...]
Answer = TypeVar("Answer")

NOTHING = StepPlan()
"""The plan of a step around which nothing is exchanged and nobody is waited for."""

_MOST_KEPT = 1024
_MOST_PHASES = 16


class Remembered(Generic[Answer]):
    """``make(members)``, remembered for the very tuples that it was asked about.

    A policy is asked before every step, and the members change only when somebody leaves or joins. Comparing or
    hashing ten thousand ranks each time would cost more than the plan itself, so it is the object that counts: a
    tuple that is equal but another one is answered anew, with an equal answer.
    """

    def __init__(self, make: Callable[[Members], Answer]) -> None:
        self._make = make
        self._known: dict[int, tuple[Members, Answer]] = {}  # by id(), which is safe while the tuple is held

    def __call__(self, members: Members) -> Answer:
        found = self._known.get(id(members))
        if found is not None:
            return found[1]
        if len(self._known) >= _MOST_KEPT:
            self._known.clear()
        answer = self._make(members)
        self._known[id(members)] = (members, answer)
        return answer


class PerRank(Generic[Answer]):
    """One answer for each rank, worked out for all at once, and again when members or sites are other ones.

    Args:
        make: from a view of anybody and a phase, the answer of every member.
        looks_at_sites: whether ``make`` does.
    """

    def __init__(self, make: Callable[[SyncView, int], dict[int, Answer]], *, looks_at_sites: bool) -> None:
        self._make = make
        self._looks_at_sites = looks_at_sites
        self._members: Members = ()
        self._sites: Mapping[int, str] = {}
        self._tables: dict[int, dict[int, Answer]] = {}

    def __call__(self, view: SyncView, phase: int) -> Answer:
        # Equality is asked only where identity says no: it takes a look at every member.
        same = view.members is self._members or view.members == self._members
        if self._looks_at_sites:
            same = same and (view.sites is self._sites or view.sites == self._sites)
        if not same:
            self._tables.clear()
            self._members, self._sites = view.members, view.sites
        table = self._tables.get(phase)
        if table is None:
            if len(self._tables) >= _MOST_PHASES:
                del self._tables[next(iter(self._tables))]
            table = self._tables[phase] = self._make(view, phase)
        return table[view.rank]


def whole(policy: str, key: str, value: object, least: int) -> int:
    """The value, if it is a whole number of at least ``least``.

    Raises:
        ConfigError: naming policy, key and value.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{policy}: {key} = {value!r} must be a whole number, at least {least}")
    return value


def number(policy: str, key: str, value: object, within: str) -> float:
    """The value, if it is a number in an interval such as ``"(0, 1]"``; round brackets leave the end out.

    Raises:
        ConfigError: naming policy, key and value.
    """
    low, high = (float(end) for end in within[1:-1].split(","))
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        above = value > low if within[0] == "(" else value >= low
        below = value < high if within[-1] == ")" else value <= high
        if above and below:
            return float(value)
    raise ConfigError(f"{policy}: {key} = {value!r} must be a number in {within}")


def flag(policy: str, key: str, value: object) -> bool:
    """The value, if it is true or false.

    Raises:
        ConfigError: naming policy, key and value.
    """
    if not isinstance(value, bool):
        raise ConfigError(f"{policy}: {key} = {value!r} must be true or false")
    return value
