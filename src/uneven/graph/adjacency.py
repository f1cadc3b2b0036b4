"""An adjacency matrix in compressed rows: for each vertex, its in-neighbours; and with its transpose."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from uneven.errors import DataError
from uneven.graph.pure.edge_list import MOST, EdgeList, Ids


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
    def of(cls, row: Ids, column: Ids, vertices: int) -> RowIndex:
        """Build the matrix from row and column of each one, in any order; duplicates count twice."""
        if len(row) > MOST:  # int32 cannot count them
            raise DataError(f"{len(row):,} edges in one part, and {MOST:,} is the most: cut the graph into more parts")
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
    def of(cls, edges: EdgeList) -> Adjacency:
        """Build the adjacency of these edges."""
        into = RowIndex.of(edges.target, edges.source, edges.vertices)
        out = RowIndex.of(edges.source, edges.target, edges.vertices)
        alike = torch.equal(into.starts, out.starts) and torch.equal(into.columns, out.columns)
        return cls(into, into if alike else out)
