"""What a partitioner answers, and what it is judged by. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from uneven.errors import ConfigError
from uneven.graph.edge_list import Ids, Wholes


@dataclass(frozen=True, slots=True)
class EdgeCut:
    """Each edge in one part (a vertex cut: a vertex is wherever one of its edges is).

    Attributes:
        order: int64 [edges]: edges by part; within a part, neighbours lie near each other where the method can tell.
        bounds: where each part begins in ``order``, and the end.
        rank: int64 [vertices]: an order of the vertices in which neighbours are near; None if the method has none.
        owners: int32 [vertices]: the part in which each vertex is rooted; None if any of those that hold it will do.
    """

    order: Wholes
    bounds: tuple[int, ...]
    rank: Wholes | None = None
    owners: Ids | None = None

    @classmethod
    def of(cls, part: Ids, parts: int, *, owners: Ids | None = None) -> EdgeCut:
        """From the part of each edge; edges keep their order within one."""
        order = np.argsort(part.astype(np.min_scalar_type(parts)), kind="stable")  # by digits: few bytes, few passes
        bounds = np.concatenate(([0], np.cumsum(np.bincount(part, minlength=parts))))
        return cls(order, tuple(bounds.tolist()), owners=owners)


@dataclass(frozen=True, slots=True)
class CutFigures:
    """How good a cut is.

    Attributes:
        replication: copies of a vertex, mean over those with edges.
        clone_rows: copies beyond the first, (RF − 1) · |V|: rows that an exchange moves each way.
        balance: most edges of a part over its target, Σ = 1 over the shares.
        edges, held: edges and vertices of each part.
    """

    replication: float
    clone_rows: int
    balance: float
    edges: tuple[int, ...]
    held: tuple[int, ...]


def figures(held: npt.NDArray[np.bool_], bounds: Sequence[int], shares: Sequence[float]) -> CutFigures:
    """How good a cut is.

    Args:
        held: bool [parts, vertices], which part has an edge of which vertex.
        bounds: as in :class:`EdgeCut`.
        shares: targets, which add up to 1.
    """
    copies = held.sum(axis=0)
    some = int((copies > 0).sum())
    edges = np.diff(np.asarray(bounds))
    over = edges / (np.asarray(shares) * max(1, int(edges.sum())))
    clones = int(copies.sum()) - some
    return CutFigures(
        (clones + some) / max(1, some),
        clones,
        float(over.max()),
        tuple(edges.tolist()),
        tuple(held.sum(axis=1).tolist()),
    )


def normal(shares: Sequence[float], parts: int) -> tuple[float, ...]:
    """Shares that add up to 1.

    Raises:
        ConfigError: another number of them than parts, or one that is not above 0.
    """
    if parts < 1:
        raise ConfigError(f"parts = {parts}: give 1 or more")
    if len(shares) != parts:
        raise ConfigError(f"shares = {tuple(shares)} are {len(shares)}, and there are {parts} parts: give one for each")
    if not all(math.isfinite(one) and one > 0.0 for one in shares):
        raise ConfigError(f"shares = {tuple(shares)}: each must be a number above 0")
    total = math.fsum(shares)
    return tuple(one / total for one in shares)
