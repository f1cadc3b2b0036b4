"""Exchanges of picked entries: what this worker's steps have moved, what of it travels, and what comes of all."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple, TypeVar

import numpy as np
import torch

from uneven.core.actions import Combined, Exchange
from uneven.entries import HEADER_BYTES, Accumulator, Selection, pack, unpack
from uneven.entries.pack import Unpacked
from uneven.entries.picked import Array, Picked
from uneven.errors import CheckpointError, TrainingError
from uneven.merge.flat import Flat
from uneven.run.entries.ahead import MirrorClock
from uneven.run.entries.announce import Announcements
from uneven.run.entries.bandwidth import LineThreshold
from uneven.run.entries.outcome import LateEntries, outcome_of
from uneven.run.entries.overlay import Overlay, sparse
from uneven.run.entries.post import Post
from uneven.run.entries.whole import WholeSum
from uneven.run.lines.rollcall import RollCall
from uneven.run.lines.traffic import Traffic
from uneven.run.parameters.replica import Met

Party = tuple[int, ...]
Saved = TypeVar("Saved")

OWN = "entries-"
HELD, BASE, WHOSE = f"{OWN}held", f"{OWN}base", f"{OWN}rank"
"""Names of what is saved, which all begin with the first."""

_PLACE = "the exchange of entries"
"""Where all are who wait for entries: one that comes back after a pause is a step behind the others, or ahead."""


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
        texts: everybody's text, by rank.
        dropped: whether nobody may be waited for any more.
    """

    def __init__(
        self, flat: Flat, rank: int, parties: Sequence[Party], post: Post, traffic: Sequence[Traffic], roll: RollCall,
        texts: Callable[[str], Sequence[str]], dropped: Callable[[], bool] = lambda: False,
    ) -> None:  # fmt: skip
        self._dropped = dropped
        self._flat, self._rank = flat, rank
        self._post, self._roll = post, roll
        self.parties = tuple(parties)
        self._mine = next(place for place, party in enumerate(parties) if rank in party)
        self._traffic = traffic
        self._width = 8 if flat.dtype is torch.float64 else 4
        others = [place for place in range(len(parties)) if place != self._mine]
        self._mirrors = MirrorClock(others, self._mirrored, lambda place: post.arrived(parties[place][0]))
        self._announced: Announcements | None = None
        self._clock = -1  # of the last exchange after which something may be under way
        self._base: torch.Tensor | None = None  # the replica after the last exchange
        # New pages of memory cost the processor more than what is done with them: 21 of 31 ms for 10,000,000 entries.
        self._spare: torch.Tensor | None = None  # that after the one before, whose memory is free
        self._movement: Array | None = None
        self._sums: Accumulator | None = None
        self._picked = 1.0
        self._threshold = LineThreshold()
        self._texts = texts
        self._saved: tuple[int, dict[str, torch.Tensor]] = (-1, {})  # whose, and what

    def begin(self) -> None:
        """Training begins, or goes on; what steps move counts from here on, if it has not begun before.

        What was saved is gone on from if every worker has loaded its own: what another one holds back is in that one's
        replica, and this one must not send it, too.
        """
        if self._base is not None:
            return
        own, (whose, saved) = self._flat.read(), self._saved
        self._saved = -1, {}
        with self._roll.waiting("the start of the exchange of entries"):
            said = self._texts(str(whose))
        if saved and all(text == str(rank) for rank, text in enumerate(said)):
            self._base = saved[BASE].to(own.device, own.dtype, copy=True)
            self._sums = Accumulator(saved[HELD].to(own.dtype).cpu().numpy().copy())
        else:
            self._base = own
            self._sums = Accumulator(np.zeros(self._flat.size, dtype=own.cpu().numpy().dtype))

    def forget(self) -> None:
        """The replica has become another one: nothing is held any more, and nothing is under way."""
        self._clock = -1
        self._base = self._sums = self._spare = None
        self._saved = -1, {}

    def state_dict(self) -> dict[str, torch.Tensor]:
        """What is held back, and the replica after the last exchange, each of shape (size,).

        Raises:
            CheckpointError: something may be under way from other sites.
        """
        if self._clock >= 0 and self._mirrors.lacks(self._clock):
            raise CheckpointError(
                "entries of other sites are under way, and would be in no checkpoint: save inside session.evaluated(), "
                "where everything has arrived"
            )
        own = self._flat.read()
        held = torch.zeros_like(own) if self._sums is None else torch.from_numpy(self._sums.held.copy())
        return {HELD: held, BASE: own if self._base is None else self._base.clone()}

    def check(self, vectors: dict[str, torch.Tensor]) -> None:
        """See that :meth:`load_state_dict` can take this up; nothing at all always can be.

        Raises:
            CheckpointError: the vectors are of another model.
        """
        for name, vector in vectors.items():
            if len(vector) != self._flat.size:
                raise CheckpointError(
                    f"{name!r} in the checkpoint has {len(vector)} numbers, and this model {self._flat.size}: resume "
                    f"with the model that the run began with"
                )

    def load_state_dict(self, vectors: dict[str, torch.Tensor], rank: int) -> None:
        """Inverse of :meth:`state_dict`, taken up where training begins.

        Args:
            rank: whose they are.
        """
        self._saved = (rank, dict(vectors)) if set(vectors) == {HELD, BASE} else (-1, {})

    def meet(self, exchange: Exchange, moved: Moved) -> Met:
        """Take part in an exchange, from reading the replica to writing into it. Waits.

        Raises:
            PeerError: somebody did not take part, or what it sent is damaged.
            TrainingError: somebody takes part with another step.
        """
        own, movement, finite = self._moved(moved)
        assert exchange.select is not None
        if exchange.lead or exchange.groups:
            return self._meet_by_way(exchange, moved, own, movement, finite)
        if exchange.select.whole and exchange.merge.combined is Combined.SUM:
            return self._meet_whole(own, movement, moved.clock, finite)
        messages, sent_bytes = self._give(exchange.select, moved, own, movement)
        heard, more_bytes = self._hear(exchange.select, moved.clock, messages)
        assert self._base is not None
        outcome = outcome_of(exchange.merge, own, self._base.cpu().numpy(), heard, self._mine)
        return self._written(outcome, sent_bytes + more_bytes, finite)

    def begin_late(self, exchange: Exchange, moved: Moved, landed: Callable[[Met, float], None]) -> LateEntries:
        """Take part in one whose outcome enters some steps later: send what is picked, and go on.

        Args:
            landed: hears what came of it, and how many seconds it took of the training.
        """
        began_s = time.perf_counter()
        own, movement, finite = self._moved(moved)
        assert exchange.select is not None
        messages, sent_bytes = self._give(exchange.select, moved, own, movement)

        def hear() -> tuple[dict[int, Unpacked], int]:
            assert exchange.select is not None
            return self._hear(exchange.select, moved.clock, messages)

        def arrive() -> torch.Tensor:
            here_s = time.perf_counter()
            heard, more_bytes = hear()
            assert self._base is not None
            outcome = outcome_of(exchange.merge, own.copy(), self._base.cpu().numpy(), heard, self._mine)
            self._spare, self._base = self._base, torch.from_numpy(outcome).to(self._flat.device)
            landed(self._met(sent_bytes + more_bytes, finite), gave_s + time.perf_counter() - here_s)
            return torch.from_numpy(np.subtract(outcome, own, out=own)).to(self._flat.device)

        gave_s = time.perf_counter() - began_s
        return LateEntries(arrive, hear)

    def _moved(self, moved: Moved) -> tuple[Array, Array, bool]:
        """The replica and what it has moved since the last exchange, each of shape (size,); whether that is finite."""
        self.begin()
        assert self._base is not None
        base, own = self._base.cpu().numpy(), self._flat.read(self._spare).cpu().numpy()
        movement = self._movement = np.subtract(own, base, out=self._movement)
        if moved.part != 1.0:
            movement *= own.dtype.type(moved.part)
            np.add(base, movement, out=own)
        return own, movement, math.isfinite(float(movement.sum()))

    def _give(
        self, select: Selection, moved: Moved, own: Array, movement: Array
    ) -> tuple[dict[int, bytes | memoryview], int]:
        """Pick and send, where this worker speaks; its own message, and the bytes that it sent."""
        if self._rank != self.parties[self._mine][0]:
            return {}, 0
        assert self._sums is not None
        self._sums.add(movement)
        picked = self._sums.take(self._threshold.within(select), own, moved.rate)
        self._picked = picked.part
        message = pack(picked, moved.clock, moved.weight)
        sent_bytes = self._send(message)
        self._threshold.sent_bytes = sent_bytes
        return {self._mine: message}, sent_bytes

    def _hear(
        self, select: Selection, clock: int, messages: dict[int, bytes | memoryview]
    ) -> tuple[dict[int, Unpacked], int]:
        """What all parties have sent, by their places; and the bytes that were handed on. Waits."""
        with self._roll.waiting(f"the exchange of entries after step {clock}", _PLACE):
            sent_bytes = self._gather(messages, self._rank == self.parties[self._mine][0], select.beside)
        return {place: self._read(place, one, clock, self._flat.size) for place, one in messages.items()}, sent_bytes

    def _meet_whole(self, own: Array, movement: Array, clock: int, finite: bool) -> Met:
        """All that is held travels as it is, and is added up on the way; ``own`` and ``movement`` may be changed."""
        assert self._sums is not None
        party, before = self.parties[self._mine], sum(one.sent_bytes for one in self._traffic)
        speakers = [one[0] for one in self.parties]
        with self._roll.waiting(f"the exchange of entries after step {clock}", _PLACE):
            if self._rank == party[0]:
                self._sums.add(movement)
                total = WholeSum(speakers, self._rank, self._tell, self._values).of(self._sums.held, clock)
                others = np.subtract(total, self._sums.held, out=movement)
                self._sums.held[:] = 0
                message = pack(Picked(len(others), None, others), clock)
                for rank in party[1:]:
                    self._tell(rank, message)
            else:
                others = self._values(party[0], clock, self._flat.size).dense()
        own += others
        self._picked = 1.0
        return self._written(own, sum(one.sent_bytes for one in self._traffic) - before, finite)

    def _meet_by_way(self, exchange: Exchange, moved: Moved, own: Array, movement: Array, finite: bool) -> Met:
        """What is picked is sent to others or to a hub; what they send is taken in as far as it is here or due."""
        assert self._sums is not None
        assert exchange.select is not None
        before, picked = sum(one.sent_bytes for one in self._traffic), None
        if self._rank == self.parties[self._mine][0]:
            self._sums.add(movement)
            picked = self._sums.take(self._threshold.within(exchange.select), own, moved.rate)
            self._picked = picked.part
        if exchange.groups:
            far = self._far_bytes()
            own += self._by_hubs(exchange.groups, picked, moved.clock)
            self._threshold.sent_bytes = self._far_bytes() - far
        else:
            if self._clock < 0:
                self._mirrors.begin(moved.clock - 1)
            self._clock = moved.clock
            if picked is not None:
                message = pack(picked, moved.clock, moved.weight)
                if exchange.barrier_bytes:
                    self._announcing(exchange.barrier_bytes).leaves(picked, len(message))
                self._threshold.sent_bytes = self._send(message)
            own += self._heard(moved.clock, moved.clock - exchange.lead)
        return self._written(own, sum(one.sent_bytes for one in self._traffic) - before, finite)

    def _far_bytes(self) -> int:
        """Sent to other parties since the run began."""
        return sum(one.sent_bytes for place, one in enumerate(self._traffic) if place != self._mine)

    def _announcing(self, most_bytes: float) -> Announcements:
        if self._announced is None:
            speakers = {place: party[0] for place, party in enumerate(self.parties) if place != self._mine}
            self._announced = Announcements(self._post, speakers, self._traffic, self._flat.size, most_bytes)
        return self._announced

    def _by_hubs(self, groups: Sequence[Party], picked: Picked | None, clock: int) -> Array:
        """The sum of what others have sent, on all of a party the same; shape (size,)."""
        party = self.parties[self._mine]
        with self._roll.waiting(f"the exchange of entries after step {clock}", _PLACE):
            if picked is None:
                return self._values(party[0], clock, self._flat.size).dense()
            others = Overlay(groups, self._rank, self._tell, self._by_rank).heard(picked, clock)
            self._hand_on(others, clock)
        return others

    def _hand_on(self, others: Array, clock: int) -> None:
        party = self.parties[self._mine]
        if party[1:]:
            message = pack(sparse(others), clock)
            for rank in party[1:]:
                self._tell(rank, message)

    def _by_rank(self, rank: int, clock: int) -> Picked:
        return self._values(rank, clock, self._flat.size)

    def catch_up(self) -> None:
        """Take in what is still under way; everybody calls it at the same step. Waits."""
        if self._clock >= 0 and not self._dropped():
            self._written(self._flat.read().cpu().numpy() + self._heard(self._clock, self._clock), 0, True)

    def _heard(self, clock: int, due: int) -> Array:
        """The sum of what a party takes in now, on all of it the same; shape (size,)."""
        party = self.parties[self._mine]
        with self._roll.waiting(f"entries of step {due}", _PLACE):
            if self._rank != party[0]:
                self._mirrors.begin(due)  # as far as its speaker has heard at least
                return self._values(party[0], clock, self._flat.size).dense()
            assert self._sums is not None
            others = np.zeros_like(self._sums.held)
            announced = self._announced
            for one in self._mirrors.take(due, announced.due() if announced else None):
                one.picked.add_to(others)
            if announced is not None:
                announced.taken(self._mirrors.taken)
            self._hand_on(others, clock)
        return others

    def _mirrored(self, place: int) -> Unpacked:
        with self._traffic[place].waiting():
            message = self._post.receive(self.parties[place][0])
        return unpack(message, self._flat.size, self._width)

    def _tell(self, rank: int, message: bytes) -> None:
        self._post.send(rank, message)
        place = next(place for place, party in enumerate(self.parties) if rank in party)
        self._traffic[place].sent_bytes += len(message)

    def _values(self, rank: int, clock: int, size: int) -> Picked:
        """What a rank's next message holds of a vector of this length."""
        place = next(place for place, party in enumerate(self.parties) if rank in party)
        with self._traffic[place].waiting():
            message = self._post.receive(rank)
        return self._read(place, message, clock, size).picked

    def _written(self, outcome: Array, sent_bytes: int, finite: bool) -> Met:
        """The replica goes on from here."""
        assert self._sums is not None
        after = torch.from_numpy(outcome).to(self._flat.device)
        self._flat.write(after)
        self._spare, self._base = self._base, after
        return self._met(sent_bytes, finite)

    def _met(self, sent_bytes: int, finite: bool) -> Met:
        assert self._sums is not None
        held = self._sums.held
        distance = math.sqrt(float(np.dot(held, held)) / max(1, len(held)))
        return Met(sent_bytes, distance, finite, 0, self._picked)

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

    def _read(self, place: int, message: bytes | memoryview, clock: int, size: int) -> Unpacked:
        found = unpack(message, size, self._width)
        if found.clock != clock:
            raise TrainingError(
                f"rank {self.parties[place][0]} sends entries of step {found.clock} where rank {self._rank} is at step "
                f"{clock}: all ranks must run the same loop. Look for a break, continue or return that only some reach"
            )
        return found

    def close(self, failed: bool) -> None:
        """Let go of the way to the others, when they need it no more; beside the program where it must not wait.

        Raises:
            PeerError: somebody is gone.
        """
        if self._dropped() and not failed:
            threading.Thread(target=_say_goodbye, args=(self._post,), name="uneven-goodbye").start()
            return
        with self._roll.waiting("the end of the exchanges of entries"):
            self._post.close(failed)


def _say_goodbye(post: Post) -> None:
    with suppress(RuntimeError):  # somebody is gone, and there is nobody to be told
        post.close(failed=False)


def peers_of(rank: int, parties: Sequence[Party]) -> Party:
    """Whom a worker sends to and hears: a speaker all other speakers and its party, another one who speaks for it."""
    mine = next(party for party in parties if rank in party)
    if rank != mine[0]:
        return (mine[0],)
    return tuple(sorted({*(party[0] for party in parties if party is not mine), *mine[1:]}))


def apart(saved: dict[str, Saved]) -> tuple[dict[str, Saved], dict[str, Saved]]:
    """Split what was saved into what belongs to exchanges of entries, and the rest."""
    own = {name: one for name, one in saved.items() if name.startswith(OWN)}
    return own, {name: one for name, one in saved.items() if name not in own}


def most_bytes(size: int) -> int:
    """The most bytes of a message for a vector of this length, with what may stand before it."""
    return 2 * HEADER_BYTES + 8 * size
