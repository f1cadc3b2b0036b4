"""An adjacency matrix in compressed rows: for each vertex, its in-neighbours; and with its transpose."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from uneven.errors import DataError
from uneven.graph.pure.clone_plan import Holders
from uneven.graph.pure.edge_list import MOST, EdgeList, Ids, Wholes


@dataclass(frozen=True)
class RowIndex:
    """A sparse matrix of ones in compressed rows (CSR)."""

    starts: Tensor  # int32 (rows + 1,): row i's columns are ``columns[starts[i] : starts[i + 1]]``
    columns: Tensor  # int32 (ones,), ascending within a row

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(self.starts) - 1

    @cached_property
    def empty(self) -> Tensor:
        """A mask of the rows without ones; bool (rows,)."""
        return self.starts[1:] == self.starts[:-1]

    @cached_property
    def chunks(self) -> Tensor:
        """The bounds of 64 blocks of rows that take about equally long; int32 vector of 65."""
        cost = self.starts.to(torch.int64) + 4 * torch.arange(self.rows + 1)  # a row costs as much as 4 ones
        wanted = torch.linspace(0, float(cost[-1]), 65, dtype=torch.float64).to(torch.int64)
        return torch.searchsorted(cost, wanted).clamp_(max=self.rows).to(torch.int32)

    @classmethod
    def of(cls, row: Ids, column: Ids, vertices: int) -> "RowIndex":
        """Build the matrix from row and column of each one, in any order; duplicates count twice."""
        if len(row) > MOST:  # int32 cannot count them
            raise DataError(
                f"{len(row):,} edges in one part, at most {MOST:,} are supported: cut the graph into more parts"
            )
        # One sort of combined keys, in place: less memory than a sort by two columns.
        key = row.astype(np.int64)
        key *= vertices
        key += column
        key.sort()
        starts = np.zeros(vertices + 1, np.int32)
        np.cumsum(np.bincount(row, minlength=vertices), out=starts[1:])
        columns = np.remainder(key, max(1, vertices), out=key).astype(np.int32)
        return cls(torch.from_numpy(starts), torch.from_numpy(columns))


@dataclass(frozen=True)
class Adjacency:
    """An adjacency matrix and its transpose, for forward and backward passes."""

    into: RowIndex  # A, a row for each target
    out: RowIndex  # Aᵀ, a row for each source; the same object if A is symmetric

    @classmethod
    def of(cls, edges: EdgeList) -> "Adjacency":
        """Build the adjacency of these edges."""
        into = RowIndex.of(edges.target, edges.source, edges.vertices)
        out = RowIndex.of(edges.source, edges.target, edges.vertices)
        alike = torch.equal(into.starts, out.starts) and torch.equal(into.columns, out.columns)
        return cls(into, into if alike else out)


@dataclass(frozen=True, slots=True)
class HaloRoute:
    """The rows that pass between this worker and the others, in either direction."""

    copies: tuple[slice, ...]  # for each worker, this part's rows that it roots
    rooted: tuple[Tensor, ...]  # for each worker, int64 (n,): the roots of this part that it has copies of


@dataclass(frozen=True)
class GraphPart:
    """One worker's part of a cut graph: its roots, its copies, and the routes to the other workers.

    Rows: roots first; then copies, by the worker that roots them, and for each worker those with out-edges only, with
    both, and with in-edges only. So the rows exchanged with one worker are one slice, without a copy.
    """

    ids: Ids  # int32 (rows,): vertices, as the store numbers them; roots first
    roots: int  # number of vertices rooted here
    copies: Ids  # int32 (rows,): number of workers that hold each
    adjacency: Adjacency  # of the part's own edges, among its rows
    down: HaloRoute  # copies with out-edges, which need their root's value
    up: HaloRoute  # copies with in-edges, whose root needs their sum
    every: HaloRoute  # all copies, for exchanges that compute layers at each of them


def part_of(edges: EdgeList, holders: Holders, root: Wholes, me: int) -> GraphPart:
    """Build the part of worker ``me`` from its edges; ``root`` (vertices,) is the worker that roots each one."""

    def pair(owner: int, holder: int) -> tuple[Ids, list[int]]:
        """Return roots of ``owner`` with copies on ``holder``, sorted by kind, and the bounds of the kinds."""
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
