"""Rows of an adjacency matrix: for each vertex, the vertices that lead to it. And the matrix with its transpose."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from uneven.errors import DataError
from uneven.graph.edge_list import MOST, EdgeList, Ids


@dataclass(frozen=True)
class RowIndex:
    """A sparse matrix of ones in compressed rows.

    Attributes:
        starts: int32 [rows + 1]: row i's columns are ``columns[starts[i] : starts[i + 1]]``.
        columns: int32 [ones], ascending within a row.
    """

    starts: Tensor
    columns: Tensor

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return len(self.starts) - 1

    @cached_property
    def empty(self) -> Tensor:
        """bool [rows]: which have no ones."""
        return self.starts[1:] == self.starts[:-1]

    @cached_property
    def chunks(self) -> Tensor:
        """int32 [65]: bounds of rows that take about equally long."""
        cost = self.starts.to(torch.int64) + 4 * torch.arange(self.rows + 1)
        wanted = torch.linspace(0, float(cost[-1]), 65, dtype=torch.float64).to(torch.int64)
        return torch.searchsorted(cost, wanted).clamp_(max=self.rows).to(torch.int32)

    @classmethod
    def of(cls, row: Ids, column: Ids, vertices: int) -> RowIndex:
        """From the row and the column of each one, in any order; twice the same counts twice.

        Raises:
            DataError: more ones than 32 bits can count.
        """
        if len(row) > MOST:
            raise DataError(f"{len(row):,} edges in one part, and {MOST:,} is the most: cut the graph into more parts")
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
    """A and its transpose, made once: a sum over in-neighbours forward is one over out-neighbours backward.

    Attributes:
        into: A, a row for each target.
        out: Aᵀ, a row for each source; the same object where the graph is symmetric.
    """

    into: RowIndex
    out: RowIndex

    @classmethod
    def of(cls, edges: EdgeList) -> Adjacency:
        """The adjacency that these edges make."""
        into = RowIndex.of(edges.target, edges.source, edges.vertices)
        out = RowIndex.of(edges.source, edges.target, edges.vertices)
        alike = torch.equal(into.starts, out.starts) and torch.equal(into.columns, out.columns)
        return cls(into, into if alike else out)
