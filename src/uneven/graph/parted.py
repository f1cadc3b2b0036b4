"""One worker's part of a cut graph: which vertices it roots, which it holds copies of, and who has the others.

Rows of a part: roots first, in the order of the store; then copies, by the worker that roots them, and there first
those whose edges only lead out, then those with both, then those whose edges only lead in. So what is sent to or
received from one worker is one slice, without a copy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from uneven.graph.clones import Holders
from uneven.graph.cut.base import Ids
from uneven.graph.rows import Adjacency


@dataclass(frozen=True, slots=True)
class HaloRoute:
    """Which rows pass between this worker and the others, one way or the other.

    Attributes:
        copies: for each worker, the slice of this part's rows that it roots.
        rooted: for each worker, int64: this part's roots of which it has a copy.
    """

    copies: tuple[slice, ...]
    rooted: tuple[Tensor, ...]

    @property
    def rows(self) -> int:
        """Copies of this worker's, which is how many rows it sends one way."""
        return sum(one.stop - one.start for one in self.copies)


@dataclass(frozen=True)
class GraphPart:
    """A worker's part.

    Attributes:
        ids: int32 [rows]: vertices, as the store numbers them; roots first.
        roots: how many of them are rooted here.
        copies: int32 [rows]: how many workers hold each.
        adjacency: the part's own edges among its rows.
        down: copies that edges lead out of: they need their root's value.
        up: copies that edges lead into: their root needs their sum.
        every: all copies, for exchanges that compute layers at each of them.
        edges: how many are this part's.
    """

    ids: Ids
    roots: int
    copies: Ids
    adjacency: Adjacency
    down: HaloRoute
    up: HaloRoute
    every: HaloRoute
    edges: int


def part_of(source: Ids, target: Ids, holders: Holders, root: Ids, me: int) -> GraphPart:
    """The part of worker ``me``.

    Args:
        source, target: its own edges.
        holders: of all workers.
        root: int [vertices], the worker that roots each.
    """
    workers, vertices = holders.sends.shape
    mine = np.flatnonzero(root == me).astype(np.int32)
    held = holders.held
    leaves, down, up, every = [], [], [], []
    row = len(mine)
    for other in range(workers):
        theirs = np.flatnonzero((root == other) & held[me]) if other != me else np.zeros(0, np.int64)
        sends, takes = holders.sends[me, theirs], holders.takes[me, theirs]
        kind = np.where(~takes, 0, np.where(sends, 1, 2))
        leaves.append(theirs[np.argsort(kind, kind="stable")].astype(np.int32))
        only_out, only_in = int((kind == 0).sum()), int((kind == 2).sum())
        down.append(slice(row, row + len(theirs) - only_in))
        up.append(slice(row + only_out, row + len(theirs)))
        every.append(slice(row, row + len(theirs)))
        row += len(theirs)
    ids = np.concatenate([mine, *leaves])
    number = np.full(vertices, -1, np.int32)
    number[ids] = np.arange(len(ids), dtype=np.int32)
    adjacency = Adjacency.of(number[source], number[target], len(ids))
    copies = held.sum(axis=0)[ids].astype(np.int32)
    routes = {
        name: HaloRoute(tuple(slices), _rooted(holders, mine, number, me, kinds))
        for name, slices, kinds in (("down", down, (0, 1)), ("up", up, (1, 2)), ("every", every, (0, 1, 2)))
    }
    return GraphPart(ids, len(mine), copies, adjacency, **routes, edges=len(source))


def _rooted(holders: Holders, mine: Ids, number: Ids, me: int, kinds: tuple[int, ...]) -> tuple[Tensor, ...]:
    """For each other worker: this one's roots that it has copies of, in the order in which those lie there."""
    found: list[npt.NDArray[np.int64]] = []
    for other in range(len(holders.sends)):
        sends, takes = holders.sends[other, mine], holders.takes[other, mine]
        flags = (sends & ~takes, sends & takes, ~sends & takes)
        rows = np.concatenate([mine[flags[one]] for one in kinds]) if other != me else np.zeros(0, np.int32)
        found.append(number[rows].astype(np.int64))
    return tuple(torch.from_numpy(one) for one in found)
