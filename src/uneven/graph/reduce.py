"""Sums and extremes over the neighbours of each vertex, with their gradients.

f_out[v] = Σ or max or min of f[u] over the edges u → v (the aggregation primitive of DistGNN, arXiv 2104.06700). A row
without neighbours gives 0. The gradient of a sum is the sum on the transposed graph.
"""

from typing import Any

import torch
from torch import Tensor

from uneven.graph import native
from uneven.graph.adjacency import Adjacency, RowIndex


def row_sums(rows: RowIndex, x: Tensor, scale: Tensor | None = None, weight: Tensor | None = None) -> Tensor:
    """Return scale · Σ of weight · x over the rows of ``x`` (width, d) that each row names; (rows, d), no gradient."""
    if not len(rows.columns):
        return x.new_zeros(rows.rows, x.shape[1])
    made = native.sums(rows, x, scale, weight)
    return bag_sums(rows, x, scale, weight) if made is None else made


def bag_sums(rows: RowIndex, x: Tensor, scale: Tensor | None = None, weight: Tensor | None = None) -> Tensor:
    """Compute :func:`row_sums` with torch: (width, d) → (rows, d)."""
    x = x if weight is None else x * weight[:, None]
    # FBGEMM's kernel for float32; mode "mean" would leave it, so means are scaled afterwards.
    found: Tensor = torch.embedding_bag(x, rows.columns, rows.starts, mode=0, include_last_offset=True)[0]
    return found if scale is None else found.mul_(scale[:, None])


class NeighbourSum(torch.autograd.Function):
    """The differentiable sum over in-neighbours, with factors of targets and of sources."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, adjacency: Adjacency, scale: Tensor | None, weight: Tensor | None) -> Tensor:
        """Map ``x`` (sources, d) to (targets, d)."""
        ctx.adjacency, ctx.factors = adjacency, (scale, weight)
        return row_sums(adjacency.into, x.contiguous(), scale, weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        # The transpose: the sum over out-neighbours, with the two factors swapped.
        scale, weight = ctx.factors
        return row_sums(ctx.adjacency.out, gradients[0].contiguous(), weight, scale), None, None, None


class NeighbourMax(torch.autograd.Function):
    """The differentiable maximum over in-neighbours per column; −∞ without any. Among equals, the first wins."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: RowIndex) -> Tensor:
        """Map ``x`` (sources, d) to (targets, d)."""
        ctx.shape = x.shape
        if not len(rows.columns):
            ctx.save_for_backward(None, None)
            return x.new_full((rows.rows, x.shape[1]), -torch.inf)
        found, _, _, winner = torch.embedding_bag(
            x.contiguous(), rows.columns, rows.starts, mode=2, include_last_offset=True
        )
        ctx.save_for_backward(winner, rows.empty)
        return found.masked_fill(rows.empty[:, None], -torch.inf)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        winner, empty = ctx.saved_tensors
        found = gradients[0].new_zeros(ctx.shape)
        if winner is not None:
            kept = gradients[0].masked_fill(empty[:, None], 0.0)
            found.scatter_add_(0, winner.masked_fill(empty[:, None], 0).long(), kept)
        return found, None


def neighbour_sum(x: Tensor, adjacency: Adjacency, scale: Tensor | None = None, weight: Tensor | None = None) -> Tensor:
    """Return scale · Σ of weight · x over in-neighbours, (sources, d) → (targets, d), differentiable in ``x``."""
    return NeighbourSum.apply(x, adjacency, scale, weight)


def neighbour_max(x: Tensor, adjacency: Adjacency) -> Tensor:
    """Return the maximum of ``x`` over in-neighbours, (sources, d) → (targets, d), −∞ without any; differentiable."""
    return NeighbourMax.apply(x, adjacency.into)
