"""The exact exchange: each vertex is computed once, at its root, and every gradient is that of one process.

Down: roots give their rows to the copies that edges lead out of. There the sums over a part's own edges are made. Up:
copies give these to their roots, which add them up. Each is the other's transpose, so the backward pass of one is the
forward pass of the other; nothing is stale and nothing is dropped.

Weights: the run takes Σ wᵢ gᵢ of the workers' gradients, so a worker's loss is scaled by 1 / wᵢ, and so is every
gradient on it. On the way they are in the unit of the whole: multiplied by wᵢ where sent, divided by wⱼ on arrival.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
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

    def swap(self, given: Sequence[Tensor], taken: Sequence[Tensor], weight: float = 1.0) -> None:
        """Give each worker what is for it, times ``weight``, and take what it has, over ``weight``; zeros from all once
        one is lost."""
        assert self.line is not None
        if self.whole and self.line.members == self.ranks:
            sent = given if weight == 1.0 else [one * weight for one in given]
            self.whole = set(self.line.all_to_all(sent, taken).wait()) >= set(self.ranks)
            for one in taken if weight != 1.0 else ():
                one.mul_(1.0 / weight)
            return
        if self.whole:  # this worker knows already that somebody is lost, and others do not
            nothing = given[0].new_empty(0)
            sides = [dict(zip(self.ranks, one, strict=True)) for one in (given, taken)]
            self.line.all_to_all(*([side.get(one, nothing) for one in self.line.members] for side in sides)).wait()
            self.whole = False
        for one in taken:
            one.zero_()

    def total(self, tensor: Tensor) -> Tensor:
        """The sum over the workers."""
        found = tensor.clone()
        if self.line is not None and self.whole:
            self.whole = set(self.line.sum(found).wait()) >= set(self.ranks)
        return found

    def down(self, x: Tensor, route: HaloRoute) -> Tensor:
        """Rows of roots → rows of the part; copies that are not on the route are 0. With a gradient."""
        back = partial(self._up, route=route, weight=self.weight)
        return RowMove.apply(x, partial(self._down, route=route), back)

    def up(self, x: Tensor, route: HaloRoute) -> Tensor:
        """Rows of the part → rows of roots, with what their copies elsewhere have. With a gradient."""
        back = partial(self._down, route=route, weight=self.weight)
        return RowMove.apply(x, partial(self._up, route=route), back)

    def _down(self, x: Tensor, route: HaloRoute, weight: float = 1.0) -> Tensor:
        return self.spread(x, [x[rows] for rows in route.rooted], route, weight)

    def spread(self, own: Tensor, given: Sequence[Tensor], route: HaloRoute, weight: float) -> Tensor:
        """Rows of roots, and for each worker what is for its copies of them → rows of the part."""
        found = own.new_zeros(len(self.part.ids), own.shape[1])
        found[: self.part.roots] = own
        if self.line is not None:
            self.swap(given, [found[one] for one in route.copies], weight)
        return found

    def _up(self, x: Tensor, route: HaloRoute, weight: float = 1.0) -> Tensor:
        found = x[: self.part.roots].clone()
        for rows, one in self.received(x, route, weight):
            found.index_add_(0, rows, one)
        return found

    def received(self, x: Tensor, route: HaloRoute, weight: float = 1.0) -> list[tuple[Tensor, Tensor]]:
        """By worker, which roots of this one have copies there, and what these have."""
        if self.line is None:
            return []
        taken = [x.new_empty(len(rows), x.shape[1]) for rows in route.rooted]
        self.swap([x[one] for one in route.copies], taken, weight)
        return list(zip(route.rooted, taken, strict=True))


class RowMove(torch.autograd.Function):
    """Rows go one way, and their gradients back another way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, there: Callable[[Tensor], Tensor], back: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.back = back
        return there(x.contiguous())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return ctx.back(gradients[0].contiguous()), None, None


class _UpMax(torch.autograd.Function):
    """The greatest of a root's own row and those of its copies; of equal ones its own, then the first worker's."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, carrier: RowCarrier) -> Tensor:
        best = x[: carrier.part.roots].clone()
        winner = torch.full(best.shape, -1, dtype=torch.int16)
        for other, (rows, one) in enumerate(carrier.received(x.contiguous(), carrier.part.up)):
            better = one > best[rows]
            best[rows] = torch.where(better, one, best[rows])
            winner[rows] = torch.where(better, other, winner[rows])
        ctx.carrier = carrier
        ctx.save_for_backward(winner)
        return best

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        carrier, (winner,), gradient = ctx.carrier, ctx.saved_tensors, gradients[0]
        route = carrier.part.up
        given = [gradient[rows] * (winner[rows] == other) for other, rows in enumerate(route.rooted)]
        return carrier.spread(gradient * (winner == -1), given, route, carrier.weight), None


class ExactExchange:
    """Sums and extremes over all in-neighbours of this worker's roots.

    Attributes:
        rows: how many rows a model works with here.
        carrier: what moves them.
    """

    def __init__(self, carrier: RowCarrier) -> None:
        self.carrier = carrier
        self.rows = carrier.part.roots

    def begin(self) -> None:
        """A forward pass begins."""

    def sum(self, x: Tensor, scale: Tensor | None = None, weight: Tensor | None = None) -> tuple[Tensor, None]:
        """scale · Σ of weight · x; [rows, d] → [rows, d], factors [rows], which may depend on the vertex alone.

        Every worker calls it at the same place of its script. All in-edges are in it.
        """
        carrier, part = self.carrier, self.carrier.part
        if carrier.line is None:
            return neighbour_sum(x, part.adjacency, scale, weight), None
        near = neighbour_sum(carrier.down(x if weight is None else x * weight[:, None], part.down), part.adjacency)
        found = carrier.up(near, part.up)
        return found if scale is None else found * scale[:, None], None

    def max(self, x: Tensor) -> Tensor:
        """Likewise; −∞ where a vertex has no in-neighbours."""
        carrier, part = self.carrier, self.carrier.part
        if carrier.line is None:
            return neighbour_max(x, part.adjacency)
        return _UpMax.apply(neighbour_max(carrier.down(x, part.down), part.adjacency), carrier)

    def finish(self) -> None:
        """Nothing is under way."""
