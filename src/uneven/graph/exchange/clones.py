"""DistGNN's exchanges (arXiv 2104.06700): every copy of a vertex computes its layers, from sums that are merged or not.

Each copy sums over its own part's edges, and with the sum goes its number of in-edges. ``0c`` exchanges nothing.
``cd-0`` sends both from the copies to the root, which adds them up and sends the totals back, in every layer. ``cd-r``
deals the vertices into r bins; epoch e sends those of bin e mod r, what was sent arrives r epochs later, and its answer
2r epochs later; who is not in the bin goes by what lies here. As released, the backward pass sends nothing
(``identity``); ``exact`` is for cd-0, whose transpose is itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from uneven.errors import ConfigError
from uneven.graph.exchange.exact import RowCarrier
from uneven.graph.reduce import neighbour_sum
from uneven.run.lines import Handle, Line

Messages = deque[tuple[int, Handle, Tensor]]


class CloneExchange:
    """Sums at all copies.

    Args:
        carrier: what moves rows.
        bins: for each other worker, into how many bins what passes between the two is dealt: r; 1 waits for each.
        backward: exact or identity.
        none: whether nothing is exchanged: 0c.
        faithful: whether each worker cuts the list of its own copies into bins, as in the released code, where a total
            may then miss copies whose turn is another; else bins are by the vertex's number, the same on all workers.

    Attributes:
        rows: copies of this worker's, roots first.
        sent_rows: rows that this worker has sent.

    Raises:
        ConfigError: an exact backward pass where sums are late or missing.
    """

    def __init__(
        self,
        carrier: RowCarrier,
        bins: Sequence[int],
        *,
        backward: str = "identity",
        none: bool = False,
        faithful: bool = False,
    ) -> None:
        if backward == "exact" and (none or max(bins, default=1) > 1):
            raise ConfigError("backward='exact' is for exchange='exact' and 'cd-0': what is late has no exact gradient")
        self.carrier = carrier
        self.bins = tuple(bins)
        self.backward = backward
        self.none = none
        self.faithful = faithful
        self.rows = len(carrier.part.ids)
        self.sent_rows = 0
        self.own_degree = (carrier.part.adjacency.into.starts.diff()).float()
        self._layers: list[LateSums] = []
        self._posted: deque[tuple[Handle, Tensor]] = deque()
        self._turn = 0
        self._dealt: tuple[list[list[Tensor]], list[list[Tensor]]] | None = None

    def dealt(self) -> tuple[list[list[Tensor]], list[list[Tensor]]]:
        """For each other worker, by bin: copies here of its roots, and roots here of which it has copies."""
        if self._dealt is None:
            part = self.carrier.part
            own = [torch.arange(one.start, one.stop) for one in part.every.copies]
            theirs = part.every.rooted
            if self.faithful:
                split = torch.from_numpy(part.copies > 1)
                place, count = split.cumsum(0) - 1, int(split.sum())
                mine = [place[rows] // max(1, -(-count // r)) for rows, r in zip(own, self.bins, strict=True)]
                told = [torch.empty(len(rows), dtype=torch.int64) for rows in theirs]
                self.line.all_to_all(mine, told).wait()
            else:
                ids = torch.from_numpy(part.ids).long()
                mine = [ids[rows] % r for rows, r in zip(own, self.bins, strict=True)]
                told = [ids[rows] % r for rows, r in zip(theirs, self.bins, strict=True)]
            self._dealt = (self._by_bin(own, mine), self._by_bin(theirs, told))
        return self._dealt

    def _by_bin(self, rows: Sequence[Tensor], at: Sequence[Tensor]) -> list[list[Tensor]]:
        return [[some[of == one] for one in range(r)] for some, of, r in zip(rows, at, self.bins, strict=True)]

    def begin(self) -> None:
        """A forward pass begins: its first layer is next."""
        self._turn = 0

    def sum(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[rows, d] → sums [rows, d] and the number of in-edges [rows] that are in them."""
        near = neighbour_sum(x, self.carrier.part.adjacency)
        degree = self.own_degree.to(x.dtype)
        if self.none or self.carrier.line is None:
            return near, degree
        if not torch.is_grad_enabled():
            return self._whole(near, degree)
        if self._turn == len(self._layers):
            self._layers.append(LateSums(self))
        layer, self._turn = self._layers[self._turn], self._turn + 1
        both: Tensor = _Merge.apply(torch.cat([degree[:, None], near], dim=1), self, layer)
        return both[:, 1:], both[:, 0].detach()

    def _whole(self, near: Tensor, degree: Tensor) -> tuple[Tensor, Tensor]:
        """Totals of now, for evaluations."""
        carrier, route = self.carrier, self.carrier.part.every
        total = carrier.down(carrier.up(torch.cat([degree[:, None], near], dim=1), route), route)
        return total[:, 1:], total[:, 0]

    def finish(self) -> None:
        """Wait for what is under way, at the end of a training."""
        while self._posted:
            self._posted.popleft()[0].wait()
        self._layers.clear()

    @property
    def under_way(self) -> int:
        """Messages that were sent and not yet taken."""
        return sum(len(one) for layer in self._layers for one in (*layer.ups, *layer.downs))

    @property
    def line(self) -> Line:
        """To the others."""
        assert self.carrier.line is not None
        return self.carrier.line

    def post(self, handle: Handle, tensor: Tensor) -> None:
        """Keep a message's memory until it has passed: for as long as any pair's delay, there and back."""
        self._posted.append((handle, tensor))
        most = 4 * len(self.bins) * len(self._layers) * 2 * (max(self.bins) + 1)
        while len(self._posted) > most:
            self._posted.popleft()[0].wait()


class LateSums:
    """One layer's messages: for each worker those under way, oldest first, with what is received into."""

    def __init__(self, exchange: CloneExchange) -> None:
        self.exchange = exchange
        self.epoch = 0
        self.leaves, self.roots = exchange.dealt()
        self.ups: list[Messages] = [deque() for _ in exchange.bins]
        self.downs: list[Messages] = [deque() for _ in exchange.bins]

    def merge(self, both: Tensor) -> Tensor:
        """Put this epoch's messages on the way, and take up those that are due."""
        found, epoch = both.clone(), self.epoch
        self.epoch += 1
        turns = [(other, epoch % r, r) for other, r in enumerate(self.exchange.bins)]
        for other, place, _ in turns:
            self._expect(self.ups[other], other, place, self.roots[other][place], both)
            self._send(other, both, self.leaves[other][place])
        answered = [(other, place) for other, place, r in turns if epoch >= r or r == 1]
        for other, place in answered:
            for rows in self._due(self.ups[other], place):
                found.index_add_(0, self.roots[other][place], rows)
        for other, place in answered:
            self._expect(self.downs[other], other, place, self.leaves[other][place], both)
            self._send(other, found, self.roots[other][place])
        for other, place, r in turns:
            if epoch >= 2 * r or r == 1:
                for rows in self._due(self.downs[other], place):
                    found[self.leaves[other][place]] = rows
        return found

    def _send(self, other: int, values: Tensor, rows: Tensor) -> None:
        if len(rows):
            given = values[rows].contiguous()
            self.exchange.post(self.exchange.line.send(given, other), given)
            self.exchange.sent_rows += len(rows)

    def _expect(self, messages: Messages, other: int, place: int, rows: Tensor, like: Tensor) -> None:
        if len(rows):
            room = like.new_empty(len(rows), like.shape[1])
            handle = self.exchange.line.receive(room, other)
            self.exchange.post(handle, room)
            messages.append((place, handle, room))

    @staticmethod
    def _due(messages: Messages, place: int) -> list[Tensor]:
        """The oldest message, if it is of the bin whose turn it is."""
        if not messages or messages[0][0] != place:
            return []
        _, handle, room = messages.popleft()
        handle.wait()
        return [room]


class _Merge(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, both: Tensor, exchange: CloneExchange, layer: LateSums) -> Tensor:
        ctx.exchange = exchange
        return layer.merge(both)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        exchange: CloneExchange = ctx.exchange
        if exchange.backward == "identity":
            return gradients[0], None, None
        carrier, weight = exchange.carrier, exchange.carrier.weight
        route = carrier.part.every
        total = carrier.up(gradients[0].contiguous(), route, weight, 1.0 / weight)
        return carrier.down(total, route, weight, 1.0 / weight), None, None
