"""Exchanges of picked entries: what this worker's steps have moved, what of it travels, and what comes of all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from uneven.core.actions import Combined, Exchange
from uneven.entries import HEADER_BYTES, Accumulator, pack, unpack
from uneven.entries.pack import Unpacked
from uneven.entries.picked import Array
from uneven.errors import TrainingError
from uneven.merge.flat import Flat
from uneven.run.entries.post import Post
from uneven.run.lines.rollcall import RollCall
from uneven.run.lines.traffic import Traffic
from uneven.run.parameters.replica import Met

Party = tuple[int, ...]


class Moved(NamedTuple):
    """What a worker brings to an exchange.

    Attributes:
        clock: steps that it has taken.
        weight: samples that its party took since the last exchange.
        part: that its own steps count as.
        rate: the learning rate as a part of the first one.
    """

    clock: int
    weight: float
    part: float = 1.0
    rate: float = 1.0


class EntriesExchange:
    """One worker's part in exchanges of picked entries.

    The first of each party speaks: it picks, sends to the first of all others, hears them, and hands on what it hears.
    All add up in the order of the parties.

    Args:
        flat: the parameters, and nothing else.
        parties: who holds one replica together; those of a worker alone too.
        post: whose peers are those of :func:`peers_of`.
        traffic: of each party, from this one's side; of its own, what is handed on.
        roll: names the missing.
    """

    def __init__(
        self, flat: Flat, rank: int, parties: Sequence[Party], post: Post, traffic: Sequence[Traffic], roll: RollCall
    ) -> None:
        self._flat, self._rank = flat, rank
        self._post, self._roll = post, roll
        self.parties = tuple(parties)
        self._mine = next(place for place, party in enumerate(parties) if rank in party)
        self._traffic = traffic
        self._base: torch.Tensor | None = None  # the replica after the last exchange
        self._sums: Accumulator | None = None
        self._picked = 1.0

    def begin(self) -> None:
        """Training begins, or goes on; what steps move counts from here on, if it has not begun before."""
        if self._base is None:
            self._base = self._flat.read()
            self._sums = Accumulator(np.zeros(self._flat.size, dtype=self._base.cpu().numpy().dtype))

    def forget(self) -> None:
        """The replica has become another one: nothing is held any more."""
        self._base = self._sums = None

    def meet(self, exchange: Exchange, moved: Moved) -> Met:
        """Take part in an exchange, from reading the replica to writing into it. Waits.

        Raises:
            PeerError: somebody did not take part, or what it sent is damaged.
            TrainingError: somebody takes part with another step.
        """
        self.begin()
        assert self._base is not None
        assert self._sums is not None
        assert exchange.select is not None
        base, own = self._base.cpu().numpy(), self._flat.read().cpu().numpy()
        movement = np.subtract(own, base)
        if moved.part != 1.0:
            movement *= own.dtype.type(moved.part)
            np.add(base, movement, out=own)
        finite = math.isfinite(float(movement.sum()))
        speaks, sent_bytes = self._rank == self.parties[self._mine][0], 0
        beside = exchange.select.beside
        messages: dict[int, bytes | memoryview] = {}
        if speaks:
            self._sums.add(movement)
            picked = self._sums.take(exchange.select, own, moved.rate)
            self._picked = picked.part
            message = pack(picked, moved.clock, moved.weight)
            messages[self._mine] = message
            sent_bytes += self._send(message)
        with self._roll.waiting(f"the exchange of entries after step {moved.clock}"):
            sent_bytes += self._gather(messages, speaks, beside)
        heard = {place: self._read(place, message, moved.clock) for place, message in messages.items()}
        outcome = self._outcome(exchange, own, base, heard)
        after = torch.from_numpy(outcome).to(self._flat.device)
        self._flat.write(after)
        self._base = after
        held = self._sums.held
        distance = math.sqrt(float(np.dot(held, held)) / max(1, len(held)))
        return Met(sent_bytes, distance, finite, 0, self._picked)

    def _outcome(self, exchange: Exchange, own: Array, base: Array, heard: dict[int, Unpacked]) -> Array:
        """The replica to go on from, shape (size,); ``own`` may be used for it."""
        assert exchange.select is not None
        merge, places = exchange.merge, sorted(heard)
        if merge.combined is Combined.SUM:
            for place in places:
                if place != self._mine:
                    heard[place].picked.add_to(own)
            return own
        weights = [merge.weight(heard[place].weight) for place in places]
        total = sum(weights)
        change = np.zeros_like(base)
        for place, weight in zip(places, weights, strict=True):
            heard[place].picked.add_to(change, weight / total if total > 0 else 1 / len(places))
        return base + change

    # ---------------------------------------------------------------- messages
    def _send(self, message: bytes) -> int:
        sent_bytes = 0
        for place, party in enumerate(self.parties):
            if place != self._mine:
                self._post.send(party[0], message)
                self._traffic[place].sent_bytes += len(message)
                sent_bytes += len(message)
        return sent_bytes

    def _gather(self, messages: dict[int, bytes | memoryview], speaks: bool, beside: bool) -> int:
        """The messages of all parties, of one's own only where what is not sent waits beside the replica."""
        party, sent_bytes = self.parties[self._mine], 0
        for place, other in enumerate(self.parties):
            if place == self._mine and not beside:
                messages.pop(place, None)
                continue
            if place not in messages:
                with self._traffic[place].waiting():
                    messages[place] = self._post.receive(other[0] if speaks else party[0])
            for rank in party[1:] if speaks else ():
                self._post.send(rank, bytes(messages[place]))
                self._traffic[self._mine].sent_bytes += len(messages[place])
                sent_bytes += len(messages[place])
        return sent_bytes

    def _read(self, place: int, message: bytes | memoryview, clock: int) -> Unpacked:
        found = unpack(message, self._flat.size, 8 if self._flat.dtype is torch.float64 else 4)
        if found.clock != clock:
            raise TrainingError(
                f"rank {self.parties[place][0]} sends entries of step {found.clock} where rank {self._rank} is at step "
                f"{clock}: all ranks must run the same loop. Look for a break, continue or return that only some reach"
            )
        return found

    def close(self, failed: bool) -> None:
        """Let go of the way to the others, when they need it no more.

        Raises:
            PeerError: somebody is gone.
        """
        with self._roll.waiting("the end of the exchanges of entries"):
            self._post.close(failed)


def peers_of(rank: int, parties: Sequence[Party]) -> Party:
    """Whom a worker sends to and hears: a speaker all other speakers and its party, another one who speaks for it."""
    mine = next(party for party in parties if rank in party)
    if rank != mine[0]:
        return (mine[0],)
    return tuple(sorted({*(party[0] for party in parties if party is not mine), *mine[1:]}))


def most_bytes(size: int) -> int:
    """Of a message for a vector of this length."""
    return HEADER_BYTES + 8 * size
