"""One worker's part of a cut graph: which vertices it roots, which it holds copies of, and who has the others.

Rows of a part: roots first, in the order of the store; then copies, by the worker that roots them, and there first
those whose edges only lead out, then those with both, then those whose edges only lead in. So what is sent to or
received from one worker is one slice, without a copy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from uneven.graph.clones import Holders
from uneven.graph.edge_list import EdgeList, Ids, Wholes
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
    """

    ids: Ids
    roots: int
    copies: Ids
    adjacency: Adjacency
    down: HaloRoute
    up: HaloRoute
    every: HaloRoute


def part_of(edges: EdgeList, holders: Holders, root: Wholes, me: int) -> GraphPart:
    """The part of worker ``me``.

    Args:
        edges: its own.
        holders: of all workers.
        root: int64 [vertices], the worker that roots each.
    """

    def pair(owner: int, holder: int) -> tuple[Ids, list[int]]:
        """Vertices of the one that the other has copies of, by what their edges do there; and where each kind ends."""
        theirs = np.flatnonzero(root == owner if owner != holder else np.zeros(0)).astype(np.int32)
        sends, takes = holders.sends[holder, theirs], holders.takes[holder, theirs]
        kinds = [theirs[one] for one in (sends & ~takes, sends & takes, takes & ~sends)]
        return np.concatenate(kinds), [0, *np.cumsum([len(one) for one in kinds]).tolist()]

    workers = range(len(holders.sends))
    here, there = [pair(one, me) for one in workers], [pair(me, one) for one in workers]
    mine = np.flatnonzero(root == me).astype(np.int32)
    begins = np.cumsum([len(mine), *(len(one) for one, _ in here)]).tolist()
    ids = np.concatenate([mine, *(one for one, _ in here)])
    number = np.full(edges.vertices, -1, np.int32)
    number[ids] = np.arange(len(ids), dtype=np.int32)

    def route(first: int, last: int) -> HaloRoute:
        copies = [slice(row + ends[first], row + ends[last]) for row, (_, ends) in zip(begins, here, strict=False)]
        rooted = [number[one[ends[first] : ends[last]]].astype(np.int64) for one, ends in there]
        return HaloRoute(tuple(copies), tuple(torch.from_numpy(one) for one in rooted))

    copies = holders.rows(root).sum(axis=0)[ids].astype(np.int32)
    adjacency = Adjacency.of(EdgeList(number[edges.source], number[edges.target], len(ids)))
    return GraphPart(ids, len(mine), copies, adjacency, down=route(0, 2), up=route(1, 3), every=route(0, 3))
