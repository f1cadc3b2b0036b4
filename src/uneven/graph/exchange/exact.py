"""The exact exchange: each vertex is computed once, at its root, and every gradient is that of one process.

Down: roots give their rows to the copies that edges lead out of. There the sums over a part's own edges are made. Up:
copies give these to their roots, which add them up. Each is the other's transpose, so the backward pass of one is the
forward pass of the other; nothing is stale and nothing is dropped.

Weights: the run takes Σ wᵢ gᵢ of the workers' gradients, so a worker's loss is scaled by 1 / wᵢ, and so is every
gradient on it. On the way they are in the unit of the whole: multiplied by wᵢ where sent, divided by wⱼ on arrival.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from uneven.graph.parted import GraphPart, HaloRoute
from uneven.graph.reduce import neighbour_max, neighbour_sum
from uneven.run.lines import Line


class RowCarrier:
    """Moves rows between roots and copies, over one line.

    Args:
        line: None where there is nobody else.
        weight: what this worker's gradient counts in the run's.

    Attributes:
        ranks: of the workers that have parts.
        whole: whether all of them were in every exchange. Where one was lost, in an elastic run, nothing more is
            exchanged: the step is left out.
    """

    def __init__(self, part: GraphPart, line: Line | None, weight: float) -> None:
        self.part = part
        self.line = line
        self.weight = weight
        self.ranks = () if line is None else line.members
        self.whole = True

    def swap(self, given: Sequence[Tensor], taken: Sequence[Tensor]) -> None:
        """Give each worker what is for it, and take what it has; zeros from all once one is lost."""
        assert self.line is not None
        if self.whole and self.line.members == self.ranks:
            self.whole = set(self.line.all_to_all(given, taken).wait()) >= set(self.ranks)
            return
        if self.whole:  # this worker knows already that somebody is lost, and others do not
            nothing = given[0].new_empty(0)
            sides = [dict(zip(self.ranks, one, strict=True)) for one in (given, taken)]
            self.line.all_to_all(*([side.get(one, nothing) for one in self.line.members] for side in sides)).wait()
            self.whole = False
        for one in taken:
            one.zero_()

    def sum(self, tensor: Tensor) -> None:
        """Replace ``tensor`` by its sum over the workers."""
        if self.line is not None and self.whole:
            self.whole = set(self.line.sum(tensor).wait()) >= set(self.ranks)

    def down(self, x: Tensor, route: HaloRoute, scale_sent: float = 1.0, scale_got: float = 1.0) -> Tensor:
        """Rows of roots → rows of the part; copies that are not on the route are 0."""
        part = self.part
        found = x.new_zeros(len(part.ids), x.shape[1])
        found[: part.roots] = x
        if self.line is not None:
            given = [_scaled(x[rows], scale_sent) for rows in route.rooted]
            taken = [found[one] for one in route.copies]
            self.swap(given, taken)
            if scale_got != 1.0:
                for one in taken:
                    one.mul_(scale_got)
        return found

    def up(self, x: Tensor, route: HaloRoute, scale_sent: float = 1.0, scale_got: float = 1.0) -> Tensor:
        """Rows of the part → rows of roots, with what their copies elsewhere have."""
        found = x[: self.part.roots].clone()
        if self.line is not None:
            taken = self.received(x, route, scale_sent)
            for rows, one in zip(route.rooted, taken, strict=True):
                found.index_add_(0, rows, one, alpha=scale_got)
        return found

    def received(self, x: Tensor, route: HaloRoute, scale_sent: float = 1.0) -> list[Tensor]:
        """What the copies of this worker's roots have elsewhere, by worker."""
        assert self.line is not None
        taken = [x.new_empty(len(rows), x.shape[1]) for rows in route.rooted]
        self.swap([_scaled(x[one], scale_sent) for one in route.copies], taken)
        return taken


Move = Callable[..., Tensor]


class _Moved(torch.autograd.Function):
    """Rows go one way along a route, and their gradients back the other way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, there: Move, back: Move, route: HaloRoute, weight: float) -> Tensor:
        ctx.back, ctx.route, ctx.weight = back, route, weight
        return there(x.contiguous(), route)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None, None]:
        gradient = ctx.back(gradients[0].contiguous(), ctx.route, ctx.weight, 1.0 / ctx.weight)
        return gradient, None, None, None, None


def _down(x: Tensor, carrier: RowCarrier) -> Tensor:
    found: Tensor = _Moved.apply(x, carrier.down, carrier.up, carrier.part.down, carrier.weight)
    return found


def _up(x: Tensor, carrier: RowCarrier) -> Tensor:
    found: Tensor = _Moved.apply(x, carrier.up, carrier.down, carrier.part.up, carrier.weight)
    return found


class _UpMax(torch.autograd.Function):
    """The greatest of a root's own row and those of its copies; of equal ones its own, then the first worker's."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, carrier: RowCarrier) -> Tensor:
        part = carrier.part
        best = x[: part.roots].clone()
        winner = torch.full(best.shape, -1, dtype=torch.int16)
        if carrier.line is not None:
            taken = carrier.received(x.contiguous(), part.up)
            for other, (rows, one) in enumerate(zip(part.up.rooted, taken, strict=True)):
                better = one > best[rows]
                best[rows] = torch.where(better, one, best[rows])
                winner[rows] = torch.where(better, other, winner[rows])
        ctx.carrier = carrier
        ctx.save_for_backward(winner)
        return best

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        carrier: RowCarrier = ctx.carrier
        part, (winner,), gradient = carrier.part, ctx.saved_tensors, gradients[0]
        found = gradient.new_zeros(len(part.ids), gradient.shape[1])
        found[: part.roots] = gradient * (winner == -1)
        if carrier.line is not None:
            weight = carrier.weight
            given = [(gradient * weight * (winner == p))[rows] for p, rows in enumerate(part.up.rooted)]
            taken = [found[one] for one in part.up.copies]
            carrier.swap(given, taken)
            for one in taken:
                one.mul_(1.0 / weight)
        return found, None


class ExactExchange:
    """Sums and extremes over all in-neighbours of this worker's roots.

    Attributes:
        rows: how many rows a model works with here.
        carrier: what moves them.
    """

    def __init__(self, carrier: RowCarrier) -> None:
        self.carrier = carrier
        self.rows = carrier.part.roots

    def sum(self, x: Tensor, scale: Tensor | None = None, weight: Tensor | None = None) -> Tensor:
        """scale · Σ of weight · x; [rows, d] → [rows, d], factors [rows], which may depend on the vertex alone.

        Every worker calls it at the same place of its script.
        """
        carrier = self.carrier
        if carrier.line is None:
            return neighbour_sum(x, carrier.part.adjacency, scale, weight)
        x = x if weight is None else x * weight[:, None]
        found = _up(neighbour_sum(_down(x, carrier), carrier.part.adjacency), carrier)
        return found if scale is None else found * scale[:, None]

    def max(self, x: Tensor) -> Tensor:
        """Likewise; −∞ where a vertex has no in-neighbours."""
        carrier = self.carrier
        if carrier.line is None:
            return neighbour_max(x, carrier.part.adjacency)
        found: Tensor = _UpMax.apply(neighbour_max(_down(x, carrier), carrier.part.adjacency), carrier)
        return found


def _scaled(x: Tensor, by: float) -> Tensor:
    return x if by == 1.0 else x * by
