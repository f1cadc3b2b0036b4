"""The owners of items by cost and speed, on a grid of gradient workers.

An item is a layer of K-FAC or a weight of SOAP: one or two square matrices to refresh, and a gradient to precondition
on every step. A weight of Muon has one matrix, which is refreshed on every step.

The grid is KAISA's (Pauloski et al., SC 2021, as in its authors' code): with a share f of P workers, w = f P ranks hold
an item's basis and precondition it. Ranks form w rows of P / w; an item belongs to a column, and each rank receives its
gradient from the rank in its own row and the item's column.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from uneven.errors import ConfigError

RULES = ("speed", "compute", "memory", "round-robin")


class Item(NamedTuple):
    """An item to place."""

    name: str
    sides: tuple[int, ...]  # of its square matrices; with `ns_steps`, rows and columns of its one matrix
    step: float  # cost of preconditioning it once, in the unit of `refresh_cost`
    ns_steps: int = 0  # Newton-Schulz steps of a refresh; 0 for a decomposition

    @property
    def squares(self) -> int:
        """The number of its matrices."""
        return 1 if self.ns_steps else len(self.sides)

    def refresh(self, square: int) -> float:
        """Return the operations of a refresh of one matrix."""
        if not self.ns_steps:
            return refresh_cost(self.sides[square])
        short, long = sorted(map(float, self.sides))
        return self.ns_steps * (4.0 * short**2 * long + 2.0 * short**3)  # X Xᵀ, its square, and both times X

    def weighed(self, square: int, rule: str, period: float) -> float:
        """Return the weight of a matrix under a rule of :func:`place`."""
        if rule == "memory":
            return float(math.prod(self.sides)) if self.ns_steps else float(self.sides[square]) ** 2
        return self.refresh(square) / (period if rule == "speed" else 1.0)

    def per_step(self, period: int, preconditions: bool, owned: Sequence[int]) -> float:
        """Return a worker's mean cost per step; ``owned`` are the squares that it refreshes."""
        return sum(self.refresh(one) for one in owned) / period + self.step * preconditions


class RankGrid(NamedTuple):
    """The columns of ranks that share an item's basis, and the rows in which gradients are passed on."""

    columns: tuple[tuple[int, ...], ...]
    rows: tuple[tuple[int, ...], ...]

    def row(self, rank: int) -> tuple[int, ...]:
        """Return the ranks that pass gradients to ``rank``, including itself."""
        return next(one for one in self.rows if rank in one)

    def column(self, rank: int) -> tuple[int, ...]:
        """Return the ranks that hold the same bases as ``rank``."""
        return next(one for one in self.columns if rank in one)


class Placement(NamedTuple):
    """The owners of each item's squares, and the column that preconditions it."""

    owners: tuple[tuple[int, ...], ...]
    columns: tuple[tuple[int, ...], ...]

    def load(self, items: Sequence[Item], rank: int, period: int) -> float:
        """Return the mean cost of ``rank`` per step."""
        found = 0.0
        for one, owners, column in zip(items, self.owners, self.columns, strict=True):
            owned = [square for square, owner in enumerate(owners) if owner == rank]
            found += one.per_step(period, rank in column, owned)
        return found


def refresh_cost(side: int) -> float:
    """Return the operations of one eigendecomposition, 9 n³. Measured: the time of 6.6 n³ at n = 576, more below."""
    return 9.0 * float(side) ** 3


def gradient_workers(share: float, workers: int) -> int:
    """Return w = f P, the number of ranks that precondition an item; raise :class:`ConfigError` unless it divides P."""
    whole = max(1, round(share * workers))
    fits = abs(share * workers - whole) < 1e-6 or share * workers < 1.0
    if not (0.0 < share <= 1.0 and fits and workers % whole == 0):
        possible = ", ".join(f"{one}/{workers}" for one in range(1, workers + 1) if workers % one == 0)
        raise ConfigError(
            f"share = {share!r} of {workers} workers gives {share * workers:g} workers per layer, which must be an "
            f"integer that divides {workers}: give one of {possible}"
        )
    return whole


def grid(members: Sequence[int], workers: int) -> RankGrid:
    """Arrange the ranks in ``workers`` rows."""
    wide = len(members) // workers
    columns = tuple(tuple(members[place::wide]) for place in range(wide))
    rows = tuple(tuple(members[start : start + wide]) for start in range(0, len(members), wide))
    return RankGrid(columns, rows)


def place(
    items: Sequence[Item],
    on: RankGrid,
    *,
    rule: str = "speed",
    speeds: Sequence[float] = (),
    period: float = 1.0,
    colocate: bool = True,
    fixed: float = 0.0,
) -> Placement:
    """Assign items to owners; deterministic, so that all ranks agree.

    Greedy, largest first, as in KAISA: the column that would finish first, and in it the rank that would. "compute" and
    "memory" count operations and numbers of a square and assume equal ranks, as in the paper; "speed" (ours) counts the
    mean cost per step of refreshing and preconditioning, over each rank's speed. "round-robin" is SC 2020's. Ties go to
    the item with the lowest name, and to the lowest rank.

    Args:
        speeds: of the ranks in ascending order, in any unit; equal if empty.
        period: steps between refreshes.
        colocate: whether one rank refreshes all squares of an item.
        fixed: cost of every rank's step that does not depend on its samples; for "speed".

    Raises:
        ConfigError: the rule is unknown.
    """
    ranks = sorted(rank for column in on.columns for rank in column)
    if rule == "round-robin":
        return _in_turn(items, on, ranks, colocate)
    if rule not in RULES:
        raise ConfigError(f"place = {rule!r} is none of {', '.join(map(repr, RULES))}")
    known = dict(zip(ranks, speeds, strict=True)) if speeds and rule == "speed" else dict.fromkeys(ranks, 1.0)
    busy = dict.fromkeys(ranks, fixed if rule == "speed" else 0.0)
    owners: dict[str, tuple[int, ...]] = {}
    columns: dict[str, tuple[int, ...]] = {}
    costs = {one.name: tuple(one.weighed(square, rule, period) for square in range(one.squares)) for one in items}
    every = {one.name: one.step if rule == "speed" else 0.0 for one in items}

    def whole(one: Item, column: tuple[int, ...]) -> float:
        return sum(costs[one.name]) + every[one.name] * len(column)

    for one in sorted(items, key=lambda it: (-whole(it, on.columns[0]), it.name)):

        def ends(column: tuple[int, ...], one: Item = one) -> float:  # binds the loop's current item
            return (sum(busy[rank] for rank in column) + whole(one, column)) / sum(known[rank] for rank in column)

        column = min(on.columns, key=ends)
        for rank in column:
            busy[rank] += every[one.name]
        parts = (sum(costs[one.name]),) if colocate else costs[one.name]
        those = []
        for cost in parts:
            owner = min(column, key=lambda rank: ((busy[rank] + cost) / known[rank], rank))
            busy[owner] += cost
            those.append(owner)
        owners[one.name] = tuple(those * one.squares if colocate else those)
        columns[one.name] = column
    return Placement(tuple(owners[one.name] for one in items), tuple(columns[one.name] for one in items))


def _in_turn(items: Sequence[Item], on: RankGrid, ranks: Sequence[int], colocate: bool) -> Placement:
    """Assign squares in turn; with more ranks than items, squares of an item go to different ranks (K-FAC-opt)."""
    apart = not colocate and len(on.columns) == 1
    owners, turn = [], 0
    for one in items:
        mine = []
        for place_in in range(one.squares):
            mine.append(ranks[turn % len(ranks)])
            turn += apart or place_in == one.squares - 1
        owners.append(tuple(mine))
    return Placement(tuple(owners), tuple(on.column(mine[0]) for mine in owners))
