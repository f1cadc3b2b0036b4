"""DistGNN's exchanges (arXiv 2104.06700): every copy of a vertex computes its layers, from sums that are merged or not.

Each copy sums over its own part's edges, and with the sum goes its number of in-edges. ``0c`` exchanges nothing.
``cd-0`` sends both from the copies to the root, which adds them up and sends the totals back, in every layer. ``cd-r``
deals the vertices into r bins; epoch e sends those of bin e mod r, what was sent arrives r epochs later, and its answer
2r epochs later; who is not in the bin goes by what lies here. As released, the backward pass sends nothing
(``identity``); ``exact`` is for cd-0, whose transpose is itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NoReturn

import torch
from torch import Tensor

from uneven.errors import ConfigError
from uneven.graph.exchange.choice import ExchangeChoice
from uneven.graph.exchange.exact import RowCarrier, RowMove
from uneven.graph.reduce import neighbour_sum
from uneven.run.lines import Handle, Line

Dealt = list[list[Tensor]]
"""For each other worker, by bin: rows here."""


class CloneExchange:
    """Sums at all copies.

    Args:
        carrier: what moves rows.
        how: cd-0, cd-r or 0c.
        size: how many workers there are.

    Attributes:
        rows: copies of this worker's, roots first.
    """

    def __init__(self, carrier: RowCarrier, how: ExchangeChoice, size: int) -> None:
        self.carrier, self.how = carrier, how
        self.bins = how.bins(0 if carrier.line is None else carrier.line.rank, size)
        self.rows = len(carrier.part.ids)
        self.own_degree = (carrier.part.adjacency.into.starts.diff()).float()
        self._layers: list[LateSums] = []
        self._posted: deque[tuple[Handle, Tensor]] = deque()
        self._turn = 0

    def _deal(self) -> tuple[Dealt, Dealt]:
        """Copies here of others' roots, and roots here of which others have copies.

        Bins are by the vertex's number, the same on all workers; or each worker cuts the list of its own copies, as in
        the released code, where a total may then miss copies whose turn is another.
        """
        part = self.carrier.part
        own = [torch.arange(one.start, one.stop) for one in part.every.copies]
        theirs = part.every.rooted
        if self.how.faithful:
            split = torch.from_numpy(part.copies > 1)
            place, count = split.cumsum(0) - 1, int(split.sum())
            mine = [place[rows] // max(1, -(-count // r)) for rows, r in zip(own, self.bins, strict=True)]
            told = [torch.empty(len(rows), dtype=torch.int64) for rows in theirs]
            self.line.all_to_all(mine, told).wait()
        else:
            ids = torch.from_numpy(part.ids).long()
            mine, told = ([ids[rows] % r for rows, r in zip(one, self.bins, strict=True)] for one in (own, theirs))
        return self._by_bin(own, mine), self._by_bin(theirs, told)

    def _by_bin(self, rows: Sequence[Tensor], at: Sequence[Tensor]) -> Dealt:
        return [[some[of == one] for one in range(r)] for some, of, r in zip(rows, at, self.bins, strict=True)]

    def begin(self) -> None:
        """A forward pass begins: its first layer is next."""
        self._turn = 0

    def sum(self, x: Tensor, scale: Tensor | None = None, weight: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """scale · Σ of weight · x, [rows, d] → [rows, d], and the number of in-edges [rows] that are in it."""
        near = neighbour_sum(x, self.carrier.part.adjacency, None, weight)
        degree = self.own_degree.to(x.dtype)
        if self.how.name != "0c" and self.carrier.line is not None:
            both = self._merged(torch.cat([degree[:, None], near], dim=1))
            near, degree = both[:, 1:], both[:, 0].detach()
        return near if scale is None else near * scale[:, None], degree

    def _merged(self, both: Tensor) -> Tensor:
        """Totals of what all copies have: for evaluations and an exact gradient those of now, without delay."""
        if self.how.backward == "exact" or not torch.is_grad_enabled():
            route = self.carrier.part.every
            return self.carrier.down(self.carrier.up(both, route), route)
        if self._turn == len(self._layers):
            self._layers.append(LateSums(self, self._layers[0].dealt if self._layers else self._deal()))
        layer, self._turn = self._layers[self._turn], self._turn + 1
        return RowMove.apply(both, layer.merge, lambda gradient: gradient)

    def max(self, x: Tensor) -> NoReturn:
        """Raises ConfigError."""
        raise ConfigError(f"max and min with exchange={self.how.name!r}: DistGNN's exchanges merge sums; use 'exact'")

    def finish(self) -> None:
        """Wait for what is under way, at the end of a training."""
        while self._posted:
            self._posted.popleft()[0].wait()
        self._layers.clear()

    @property
    def under_way(self) -> int:
        """Messages that were sent and not yet taken."""
        return sum(len(one) for layer in self._layers for way in (layer.up, layer.down) for one in way.messages)

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


class LateWay:
    """Rows that go one way, from copies to roots or back: for each worker what is under way, oldest first.

    Args:
        given, taken: rows here that are sent, and rows here that are meant by what comes.
    """

    def __init__(self, exchange: CloneExchange, given: Dealt, taken: Dealt) -> None:
        self.exchange = exchange
        self.given = given
        self.taken = taken
        self.messages: list[deque[tuple[int, Handle, Tensor]]] = [deque() for _ in exchange.bins]

    def post(self, values: Tensor, other: int, place: int) -> None:
        """Put what passes between the two in this bin on the way."""
        line = self.exchange.line
        if count := len(self.taken[other][place]):
            room = values.new_empty(count, values.shape[1])
            handle = line.receive(room, other)
            self.exchange.post(handle, room)
            self.messages[other].append((place, handle, room))
        if len(rows := self.given[other][place]):
            sent = values[rows].contiguous()
            self.exchange.post(line.send(sent, other), sent)

    def due(self, other: int, place: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Rows here and what is for them, of the oldest message, if it is of the bin whose turn it is."""
        if self.messages[other] and self.messages[other][0][0] == place:
            _, handle, room = self.messages[other].popleft()
            handle.wait()
            yield self.taken[other][place], room


class LateSums:
    """One layer's messages."""

    def __init__(self, exchange: CloneExchange, dealt: tuple[Dealt, Dealt]) -> None:
        self.bins = exchange.bins
        self.dealt = dealt
        self.epoch = 0
        leaves, roots = dealt
        self.up, self.down = LateWay(exchange, leaves, roots), LateWay(exchange, roots, leaves)

    def merge(self, both: Tensor) -> Tensor:
        """Put this epoch's messages on the way, and take up those that are due."""
        found, epoch = both.clone(), self.epoch
        self.epoch += 1
        turns = [(other, epoch % r, r) for other, r in enumerate(self.bins)]
        for other, place, _ in turns:
            self.up.post(both, other, place)
        answered = [(other, place) for other, place, r in turns if epoch >= r or r == 1]
        for other, place in answered:
            for at, rows in self.up.due(other, place):
                found.index_add_(0, at, rows)
        for other, place in answered:
            self.down.post(found, other, place)
        for other, place, r in turns:
            if epoch >= 2 * r or r == 1:
                for at, rows in self.down.due(other, place):
                    found[at] = rows
        return found
