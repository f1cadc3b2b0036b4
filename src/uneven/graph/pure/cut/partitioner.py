"""The result and the quality measures of a partitioner."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from uneven.errors import ConfigError
from uneven.graph.pure.edge_list import Ids, Wholes


@dataclass(frozen=True, slots=True)
class EdgeCut:
    """A vertex cut: each edge is in one part, and a vertex is in every part that has one of its edges."""

    order: Wholes  # int64 (edges,): edges by part; within a part, neighbours are close if the method knows them
    bounds: tuple[int, ...]  # where each part begins in ``order``, and the end
    rank: Wholes | None = None  # int64 (vertices,): an order in which neighbours are close; None if the method has none
    owners: Ids | None = None  # int32 (vertices,): the part that roots each vertex; None for any part that holds it

    @classmethod
    def of(cls, part: Ids, parts: int, *, owners: Ids | None = None) -> "EdgeCut":
        """Build a cut from the part of each edge, (edges,); edges keep their order within a part."""
        order = np.argsort(part.astype(np.min_scalar_type(parts)), kind="stable")  # radix sort: few bytes, few passes
        bounds = np.concatenate(([0], np.cumsum(np.bincount(part, minlength=parts))))
        return cls(order, tuple(bounds.tolist()), owners=owners)


@dataclass(frozen=True, slots=True)
class CutFigures:
    """The quality of a cut."""

    replication: float  # copies per vertex, a mean over vertices with edges
    clone_rows: int  # copies beyond the first, (RF − 1) · |V|: rows that an exchange moves each way
    balance: float  # maximum of a part's edges over its target
    edges: tuple[int, ...]  # of each part
    held: tuple[int, ...]  # vertices of each part


def figures(held: npt.NDArray[np.bool_], bounds: Sequence[int], shares: Sequence[float]) -> CutFigures:
    """Compute the quality of a cut from ``held``, bool (parts, vertices); ``shares`` sum to 1."""
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
    """Normalize shares to a sum of 1; raise :class:`ConfigError` unless there is one above 0 per part."""
    if parts < 1:
        raise ConfigError(f"parts = {parts}: give 1 or more")
    if len(shares) != parts:
        raise ConfigError(f"shares = {tuple(shares)} are {len(shares)} for {parts} parts: give one for each")
    if not all(math.isfinite(one) and one > 0.0 for one in shares):
        raise ConfigError(f"shares = {tuple(shares)}: each must be a number above 0")
    total = math.fsum(shares)
    return tuple(one / total for one in shares)
