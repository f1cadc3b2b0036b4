"""The groups of DS-Sync: who meets whom in each exchange, so that all agree over several of them.

A grouping cuts the members into disjoint groups for each turn, identically on every worker. Equal weights keep the
overall mean in every turn; a full grid or hypercube reaches it exactly once each axis has had its turn. Groups that
never change would drift apart without bound.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from random import Random

import numpy as np

from uneven.policy.core.exact import splitmix64
from uneven.policy.core.registry import Registry
from uneven.policy.core.views import SyncView
from uneven.policy.sync._parts import Members, whole

Groups = tuple[Members, ...]


class Grouping(ABC):
    """A rule that divides the members into groups, turn by turn."""

    reach: str  # in words, the number of exchanges until every worker's news can have reached all others
    looks_at_sites: bool = False  # whether the groups depend on ``view.sites``

    @abstractmethod
    def phase(self, members: int, turn: int) -> int:
        """Return the phase that decides the groups in a turn (the number of exchanges so far)."""

    @abstractmethod
    def groups(self, view: SyncView, phase: int) -> Groups:
        """Return disjoint groups that cover ``view.members``; they depend on members, sites and phase only."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{key}={value!r}' for key, value in vars(self).items())})"


class Grid(Grouping):
    """Rows of a grid, then its columns. On a full grid two turns give the exact mean (DS-Sync's own N = 4 is 2 × 2).

    Args:
        columns: members of a row, at least 2. None looks for a full grid at most about four times as long as wide, and
            otherwise takes nearly a square [default]. Up to three members are one row.
    """

    reach = "2 exchanges"

    def __init__(self, *, columns: int | None = None) -> None:
        self.columns = None if columns is None else whole("grid", "columns", columns, least=2)

    def groups(self, view: SyncView, phase: int) -> Groups:
        size = len(view.members)
        columns = self.columns or _columns(size)
        if columns >= size:
            return (view.members,)
        # An incomplete grid gets rows of nearly equal length instead of a short last one.
        if phase == 0:
            return _cut(view.members, math.ceil(size / columns))
        return _by(view.members, lambda place: place % columns)

    def phase(self, members: int, turn: int) -> int:
        return turn % 2


class Digits(Grouping):
    """Places written as digits: each turn groups the members that differ in one digit only. In base 2, a hypercube.

    With base^d members, d turns give the exact mean. Moshpit's grid is the same structure.

    Args:
        base: members of a group, at least 2.
    """

    reach = "one exchange per digit of the number of workers"

    def __init__(self, *, base: int = 2) -> None:
        self.base = whole("digits", "base", base, least=2)

    def groups(self, view: SyncView, phase: int) -> Groups:
        weight = self.base**phase
        return _by(view.members, lambda place: (place // (weight * self.base), place % weight))

    def phase(self, members: int, turn: int) -> int:
        digits = 1
        while self.base**digits < members:
            digits += 1
        return turn % digits


class RandomGroups(Grouping):
    """Random groups that change in every turn, drawn from seed and turn and so equal on every worker.

    Args:
        size: members of a group, more if it does not divide the members; None is about the square root of their number.
        seed: of the draw.
    """

    reach = "a few exchanges, a random number"

    def __init__(self, *, size: int | None = None, seed: int = 0) -> None:
        self.size = None if size is None else whole("random", "size", size, least=2)
        self.seed = whole("random", "seed", seed, least=0)

    def groups(self, view: SyncView, phase: int) -> Groups:
        members = view.members
        # Only Random.random() promises the same numbers in every version of Python; shuffle() does not.
        draw = Random(int(splitmix64(np.array([phase]), self.seed + 1)[0])).random
        shuffled = tuple(rank for _, rank in sorted((draw(), rank) for rank in members))
        size = self.size or max(2, round(len(members) ** 0.5))
        parts = _cut(shuffled, max(1, len(members) // size))
        return tuple(tuple(sorted(part)) for part in parts)

    def phase(self, members: int, turn: int) -> int:
        return turn


class Sites(Grouping):
    """Groups that respect a bottleneck: ``inside`` turns within each site, then one across all sites.

    In the turn across there are as many groups as the smallest site has members, each with members of every site in
    proportion. If the sizes are multiples of the smallest one, a turn inside and a turn across give the exact mean.
    ``inside = 1`` alternates as DS-Sync does, whose second version keeps groups from crossing a bottleneck; this rule
    is ours. More turns inside suit a slow link.
    """

    looks_at_sites = True

    def __init__(self, *, inside: int = 1) -> None:
        self.inside = whole("sites", "inside", inside, least=1)

    @property
    def reach(self) -> str:  # type: ignore[override]
        return f"{self.inside + 1} exchanges"

    def groups(self, view: SyncView, phase: int) -> Groups:
        homes = by_site(view)
        if len(homes) == 1 or phase == 0:
            return homes
        across: list[list[int]] = [[] for _ in range(min(map(len, homes)))]
        for home in homes:
            # Deal the members of each site round the groups, so that every group has some of each.
            for place, rank in enumerate(home):
                across[place % len(across)].append(rank)
        return tuple(tuple(sorted(group)) for group in across)

    def phase(self, members: int, turn: int) -> int:
        return int(turn % (self.inside + 1) == self.inside)


def by_site(view: SyncView) -> Groups:
    """Return the members of each site, in order of the sites' names; members without a site belong to site ``""``."""
    homes: dict[str, list[int]] = {}
    for rank in view.members:
        homes.setdefault(view.sites.get(rank, ""), []).append(rank)
    return tuple(tuple(homes[name]) for name in sorted(homes))


def _columns(size: int) -> int:
    if size <= 3:
        return max(1, size)
    root = math.isqrt(size)
    # The nearest divisor below the root, down to half of it: beyond that the grid is too long to be useful.
    for rows in range(root, max(2, math.ceil(root / 2)) - 1, -1):
        if size % rows == 0:
            return size // rows
    return math.ceil(math.sqrt(size))


def _cut(members: Members, parts: int) -> Groups:
    # Consecutive parts whose sizes differ by at most one.
    size = len(members)
    return tuple(members[size * part // parts : size * (part + 1) // parts] for part in range(parts))


def _by(members: Members, key: Callable[[int], Hashable]) -> Groups:
    found: dict[Hashable, list[int]] = {}
    for place, rank in enumerate(members):
        found.setdefault(key(place), []).append(rank)
    return tuple(map(tuple, found.values()))


groupings: Registry[Grouping] = Registry("grouping", Grouping)  # type: ignore[type-abstract]
"""The registry of groupings."""

groupings.register("grid", Grid)
groupings.register("digits", Digits)
groupings.register("random", RandomGroups)
groupings.register("sites", Sites)
