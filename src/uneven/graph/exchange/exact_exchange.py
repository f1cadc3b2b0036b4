"""The exact exchange: each vertex is computed once, at its root, and gradients equal those of one process.

Down: roots send their rows to the copies that edges lead out of, and each part sums over its own edges. Up: copies send
these sums to their roots, which add them up. Each is the other's transpose, and its backward pass.

Weights: the run computes Σ wᵢ gᵢ of the workers' gradients, so a worker's loss, and with it each gradient, is scaled by
1 / wᵢ. Gradients are multiplied by wᵢ before sending and divided by wⱼ on arrival.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from uneven.graph.adjacency import GraphPart, HaloRoute
from uneven.graph.reduce import neighbour_max, neighbour_sum
from uneven.run.lines import Line


class RowCarrier:
    """The transport of rows between roots and copies, over one line (None for a single worker)."""

    def __init__(self, part: GraphPart, line: Line | None, weight: float) -> None:
        self.part = part
        self.line = line
        self.weight = weight  # of this worker's gradient in the run's
        self.ranks = () if line is None else line.members  # that have parts
        self.whole = True  # False once an exchange missed one of them (elastic runs): the step is skipped

    def swap(self, given: Sequence[Tensor], taken: Sequence[Tensor], weight: float = 1.0) -> None:
        """Send ``given`` (n, d) times ``weight``, and receive ``taken`` (m, d) over ``weight``; 0 after a loss."""
        assert self.line is not None
        if self.whole and self.line.members == self.ranks:
            sent = given if weight == 1.0 else [one * weight for one in given]
            self.whole = set(self.line.all_to_all(sent, taken).wait()) >= set(self.ranks)
            for one in taken if weight != 1.0 else ():
                one.mul_(1.0 / weight)
            return
        # This worker has detected a change, but others may not: take part once more, so that none waits.
        if self.whole:
            nothing = given[0].new_empty(0)
            sides = [dict(zip(self.ranks, one, strict=True)) for one in (given, taken)]
            self.line.all_to_all(*([side.get(one, nothing) for one in self.line.members] for side in sides)).wait()
            self.whole = False
        for one in taken:
            one.zero_()

    def total(self, tensor: Tensor) -> Tensor:
        """Return the sum over the workers of a tensor of one shape."""
        found = tensor.clone()
        if self.line is not None and self.whole:
            self.whole = set(self.line.sum(found).wait()) >= set(self.ranks)
        return found

    def down(self, x: Tensor, route: HaloRoute) -> Tensor:
        """Map rows of roots (roots, d) to rows of the part (rows, d), 0 for copies off the route; differentiable."""
        back = partial(self._up, route=route, weight=self.weight)
        return RowMove.apply(x, partial(self._down, route=route), back)

    def up(self, x: Tensor, route: HaloRoute) -> Tensor:
        """Map rows of the part (rows, d) to rows of roots (roots, d), plus those of other copies; differentiable."""
        back = partial(self._down, route=route, weight=self.weight)
        return RowMove.apply(x, partial(self._up, route=route), back)

    def _down(self, x: Tensor, route: HaloRoute, weight: float = 1.0) -> Tensor:
        return self.spread(x, [x[rows] for rows in route.rooted], route, weight)

    def spread(self, own: Tensor, given: Sequence[Tensor], route: HaloRoute, weight: float) -> Tensor:
        """Return the part's rows (rows, d) from its roots' ``own`` (roots, d); send ``given`` (n, d) per worker."""
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
        """Return, by worker, the roots (n,) here that have copies there, and the rows (n, d) of these copies."""
        if self.line is None:
            return []
        taken = [x.new_empty(len(rows), x.shape[1]) for rows in route.rooted]
        self.swap([x[one] for one in route.copies], taken, weight)
        return list(zip(route.rooted, taken, strict=True))


class RowMove(torch.autograd.Function):
    """A linear map of rows with an explicit transpose for the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, there: Callable[[Tensor], Tensor], back: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.back = back
        return there(x.contiguous())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return ctx.back(gradients[0].contiguous()), None, None


class _UpMax(torch.autograd.Function):
    """The maximum over a root's row and those of its copies; among equals, its own wins, then the first worker's."""

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
    """The sums and extremes over all in-neighbours of this worker's roots."""

    def __init__(self, carrier: RowCarrier) -> None:
        self.carrier = carrier
        self.rows = carrier.part.roots

    def begin(self) -> None:
        """Do nothing: an exact forward pass has no state."""

    def sum(self, x: Tensor, scale: Tensor | None = None, weight: Tensor | None = None) -> tuple[Tensor, None]:
        """Return scale · Σ of weight · x, (rows, d) → (rows, d), with factors (rows,); every worker must call it."""
        carrier, part = self.carrier, self.carrier.part
        if carrier.line is None:
            return neighbour_sum(x, part.adjacency, scale, weight), None
        # Factors are applied at the roots, outside of the exchange, as they depend on the vertex only.
        near = neighbour_sum(carrier.down(x if weight is None else x * weight[:, None], part.down), part.adjacency)
        found = carrier.up(near, part.up)
        return found if scale is None else found * scale[:, None], None

    def max(self, x: Tensor) -> Tensor:
        """Return the maximum over in-neighbours, (rows, d) → (rows, d); −∞ without any."""
        carrier, part = self.carrier, self.carrier.part
        if carrier.line is None:
            return neighbour_max(x, part.adjacency)
        return _UpMax.apply(neighbour_max(carrier.down(x, part.down), part.adjacency), carrier)

    def finish(self) -> None:
        """Do nothing: no messages are in flight."""
