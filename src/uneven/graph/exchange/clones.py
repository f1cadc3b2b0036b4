"""DistGNN's exchanges (arXiv 2104.06700): every copy of a vertex computes its layers, from sums that may be merged.

Each copy sums over its own part's edges. ``0c`` exchanges nothing. With ``cd-0``, copies send sums and in-degrees to
the root, which returns the totals, in every layer. ``cd-r`` deals the vertices into r bins: epoch e sends those of bin
e mod r, the message arrives r epochs later and its answer 2r epochs later; other vertices use local sums. As released,
the backward pass sends nothing (``identity``); ``exact`` is for cd-0, whose transpose is itself.
"""

import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

import torch
from torch import Tensor

from uneven.errors import ConfigError
from uneven.graph.exchange.exact_exchange import RowCarrier, RowMove
from uneven.graph.reduce import neighbour_sum
from uneven.run.lines import Handle, Line


@dataclass(frozen=True)
class ExchangeChoice:
    """The exchange (exact, cd-0, cd-r or 0c) and its backward pass."""

    name: str  # as given
    backward: str
    r: int = 1  # epochs until sums arrive; 1 is without delay
    delays: Mapping[tuple[int, int], int] = field(default_factory=dict)  # (rank, rank) → another r for this pair
    faithful: bool = False  # deal copies into bins per worker, as in the released code

    @classmethod
    def of(
        cls, name: str, backward: str | None, delays: Mapping[tuple[int, int], int], faithful: bool = False
    ) -> "ExchangeChoice":
        """Parse the user's arguments; raise :class:`ConfigError` if they are unknown or do not go together."""
        known = re.fullmatch(r"exact|cd-0|0c|cd-r(?::r=0*([1-9]\d*))?", name)
        if known is None:
            raise ConfigError(f"exchange={name!r}: give exact, cd-0, cd-r:r=5 or 0c")
        kind, r = name.partition(":")[0], int(known[1] or (5 if name == "cd-r" else 1))
        chosen = backward or ("exact" if kind == "exact" else "identity")
        if chosen not in ("exact", "identity") or (kind == "exact") > (chosen == "exact"):
            raise ConfigError(f"backward={backward!r} with exchange={name!r}: exact, or identity for DistGNN's")
        if chosen == "exact" and kind in ("cd-r", "0c"):
            raise ConfigError(
                f"backward='exact' with exchange={name!r}: late or missing rows have no exact gradient; use 'identity'"
            )
        if delays and (kind != "cd-r" or min(delays.values()) < 1):
            raise ConfigError(f"delays={dict(delays)}: give r >= 1 for pairs of ranks, with exchange='cd-r:r=5'")
        if faithful and kind != "cd-r":
            raise ConfigError(f"faithful=True with exchange={name!r}: it applies to cd-r only; give cd-r:r=5")
        return cls(name, chosen, r, delays, faithful)

    @property
    def exact(self) -> bool:
        """True if each vertex is computed once."""
        return self.name == "exact"

    def bins(self, rank: int, size: int) -> list[int]:
        """Return the number of bins (r) between this worker and each of ``size``; with 1, it waits for the answer."""
        return [self.delays.get((rank, one), self.delays.get((one, rank), self.r)) for one in range(size)]


Dealt = list[list[Tensor]]  # for each other worker, by bin: rows of this part


class CloneExchange:
    """The sums at all copies of each vertex."""

    def __init__(self, carrier: RowCarrier, how: ExchangeChoice, size: int) -> None:
        self.carrier = carrier
        self.how = how
        self.bins = how.bins(0 if carrier.line is None else carrier.line.rank, size)
        self.rows = len(carrier.part.ids)  # all copies, roots first
        self.own_degree = (carrier.part.adjacency.into.starts.diff()).float()
        self._layers: list[LateSums] = []
        self._posted: deque[tuple[Handle, Tensor]] = deque()
        self._turn = 0

    def _deal(self) -> tuple[Dealt, Dealt]:
        """Return, by bin, copies here of others' roots, and roots here with copies elsewhere."""
        part = self.carrier.part
        own = [torch.arange(one.start, one.stop) for one in part.every.copies]
        theirs = part.every.rooted
        if self.how.faithful:
            split = torch.from_numpy(part.copies > 1)
            # As released, each worker cuts the list of its copies; a total may then miss copies of another bin.
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
        self._turn = 0

    def sum(self, x: Tensor, scale: Tensor | None = None, weight: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return scale · Σ of weight · x, (rows, d) → (rows, d), and the number of in-edges in it, (rows,)."""
        near = neighbour_sum(x, self.carrier.part.adjacency, None, weight)
        degree = self.own_degree.to(x.dtype)
        if self.how.name != "0c" and self.carrier.line is not None:
            both = self._merged(torch.cat([degree[:, None], near], dim=1))
            near, degree = both[:, 1:], both[:, 0].detach()
        return near if scale is None else near * scale[:, None], degree

    def _merged(self, both: Tensor) -> Tensor:
        """Return the totals of all copies, (rows, 1 + d); without delay in evaluations and for exact gradients."""
        if self.how.backward == "exact" or not torch.is_grad_enabled():
            route = self.carrier.part.every
            return self.carrier.down(self.carrier.up(both, route), route)
        if self._turn == len(self._layers):
            self._layers.append(LateSums(self, self._layers[0].dealt if self._layers else self._deal()))
        layer, self._turn = self._layers[self._turn], self._turn + 1
        return RowMove.apply(both, layer.merge, lambda gradient: gradient)

    def max(self, x: Tensor) -> NoReturn:
        """Raise :class:`ConfigError`: these exchanges merge sums only. ``x`` has shape (rows, d)."""
        raise ConfigError(f"max and min with exchange={self.how.name!r}: DistGNN's exchanges merge sums; use 'exact'")

    def finish(self) -> None:
        """Wait for all messages in flight, after the last step."""
        while self._posted:
            self._posted.popleft()[0].wait()
        self._layers.clear()

    @property
    def under_way(self) -> int:
        return sum(len(one) for layer in self._layers for way in (layer.up, layer.down) for one in way.messages)

    @property
    def line(self) -> Line:
        assert self.carrier.line is not None
        return self.carrier.line

    def post(self, handle: Handle, tensor: Tensor) -> None:
        """Keep a message's tensor, of any shape, alive until it has been sent or received."""
        self._posted.append((handle, tensor))
        # Enough for the longest delay of any pair, there and back.
        most = 4 * len(self.bins) * len(self._layers) * 2 * (max(self.bins) + 1)
        while len(self._posted) > most:
            self._posted.popleft()[0].wait()


class LateWay:
    """Rows in flight one way: ``given`` are rows here that are sent, ``taken`` those that received values are for."""

    def __init__(self, exchange: CloneExchange, given: Dealt, taken: Dealt) -> None:
        self.exchange = exchange
        self.given = given
        self.taken = taken
        # For each worker: (bin, handle, values), oldest first.
        self.messages: list[deque[tuple[int, Handle, Tensor]]] = [deque() for _ in exchange.bins]

    def post(self, values: Tensor, other: int, place: int) -> None:
        """Start the exchange of this bin's rows of ``values`` (rows, d) with one worker."""
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
        """Yield the rows (n,) and values (n, d) of the oldest message, if it belongs to the current bin."""
        if self.messages[other] and self.messages[other][0][0] == place:
            _, handle, room = self.messages[other].popleft()
            handle.wait()
            yield self.taken[other][place], room


class LateSums:
    """The delayed messages of one layer."""

    def __init__(self, exchange: CloneExchange, dealt: tuple[Dealt, Dealt]) -> None:
        self.bins = exchange.bins
        self.dealt = dealt
        self.epoch = 0
        leaves, roots = dealt
        self.up = LateWay(exchange, leaves, roots)
        self.down = LateWay(exchange, roots, leaves)

    def merge(self, both: Tensor) -> Tensor:
        """Send this epoch's messages and merge those that are due into ``both`` (rows, 1 + d)."""
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
