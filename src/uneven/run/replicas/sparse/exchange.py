"""Exchanges of picked entries: the movement of this worker's steps, its selected part, and the merge of all."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial

import numpy as np
import torch

from uneven.errors import CheckpointError, TrainingError
from uneven.policy.core.actions import Combined, Exchange
from uneven.policy.select import HEADER_BYTES, Selection, pack, unpack
from uneven.policy.select.pack import Unpacked
from uneven.policy.select.picked import Array, Picked
from uneven.run.lines.rollcall import RollCall
from uneven.run.lines.traffic import Traffic
from uneven.run.replicas.flat import Flat
from uneven.run.replicas.replica import ExchangeResult
from uneven.run.replicas.sparse.elastic_entries import outcome_of
from uneven.run.replicas.sparse.overlay import Overlay, sparse
from uneven.run.replicas.sparse.selective_barrier import Announcements
from uneven.run.replicas.sparse.unsent import BASE, HELD, Moved, UnsentMovement
from uneven.runtime.messages.peer_messages import PeerMessages


class WholeSum:
    """A reduce-scatter and an all-gather between speakers, 2 (K − 1) / K vectors; their order is the same on all."""

    def __init__(
        self,
        speakers: Sequence[int],
        rank: int,
        send: Callable[[int, bytes], None],
        receive: Callable[[int, int, int], Picked],
    ) -> None:
        self._speakers = tuple(speakers)
        self._rank = rank
        self._send = send
        self._receive = receive

    def of(self, own: Array, clock: int) -> Array:
        """Return the sum over all speakers, shape (n,) like ``own`` on each of them."""
        ends = np.linspace(0, len(own), len(self._speakers) + 1).astype(int)
        parts = {rank: slice(low, high) for rank, low, high in zip(self._speakers, ends[:-1], ends[1:], strict=True)}
        for rank in self._others():
            self._send(rank, _message(own[parts[rank]], clock))
        mine, total = parts[self._rank], np.empty_like(own)
        heard = {rank: self._receive(rank, clock, mine.stop - mine.start).dense() for rank in self._others()}
        heard[self._rank] = own[mine]
        total[mine] = 0
        for rank in self._speakers:  # in a fixed order, so that rounding does not depend on which speaker sums
            total[mine] += heard[rank]
        message = _message(total[mine], clock)
        for rank in self._others():
            self._send(rank, message)
        for rank in self._others():
            length = parts[rank].stop - parts[rank].start
            total[parts[rank]] = self._receive(rank, clock, length).dense()
        return total

    def _others(self) -> list[int]:
        return [rank for rank in self._speakers if rank != self._rank]


def _message(values: Array, clock: int) -> bytes:
    return pack(Picked(len(values), None, values), clock)


class MirrorClock:
    """The step up to which each other party's messages were received (``heard``). Each sends one message a step, in
    order."""

    def __init__(
        self, others: Iterable[int], receive: Callable[[int], Unpacked], arrived: Callable[[int], bool]
    ) -> None:
        self._receive = receive
        self._arrived = arrived
        self.heard: dict[int, int] = dict.fromkeys(others, -1)
        self.taken: dict[int, int] = dict.fromkeys(self.heard, 0)

    def begin(self, clock: int) -> None:
        """Start with all parties at this step, and nothing under way."""
        self.heard = dict.fromkeys(self.heard, clock)

    def take(self, due: int, barred: Mapping[int, int] | None = None) -> list[Unpacked]:
        """Return the messages that are here, and wait for those of steps up to ``due``, and for ``barred`` of each
        place.
        Raises :class:`TrainingError` if another party is at another step."""
        found = []
        for place in self.heard:
            least = (barred or {}).get(place, 0)  # the selective barrier may need messages before they are due
            while self.heard[place] < due or self.taken[place] < least or self._arrived(place):
                one = self._receive(place)
                if one.clock != self.heard[place] + 1:
                    raise TrainingError(
                        f"entries of step {one.clock} came, but step {self.heard[place] + 1} was due: all ranks "
                        "must run the same loop. Look for a break, continue or return that only some reach"
                    )
                self.heard[place] = one.clock
                self.taken[place] += 1
                found.append(one)
        return found

    def lacks(self, clock: int) -> bool:
        """Return whether messages of the steps up to this one may be under way."""
        return any(heard < clock for heard in self.heard.values())


Party = tuple[int, ...]
_Heard = tuple[float, dict[int, Unpacked], int]  # time of asking; messages by place; bytes forwarded

# One name for all waits for entries, because a worker that returns after a pause is a step behind the others, or ahead.
_PLACE = "the exchange of entries"


class EntriesExchange(UnsentMovement):
    """One worker's part in exchanges of picked entries of ``flat``, the trained parameters.

    The first worker of each party is its speaker: it picks, sends to all other speakers, receives from them, and
    forwards to its party, whose workers hold one replica together.

    Args:
        post: its peers are those of :func:`peers_of`.
        traffic: to each party; for this worker's own, the forwarded bytes.
        texts: gathers a text from every rank.
        dropped: whether no worker may be waited for any longer.
    """

    def __init__(
        self,
        flat: Flat,
        rank: int,
        parties: Sequence[Party],
        post: PeerMessages,
        traffic: Sequence[Traffic],
        roll: RollCall,
        texts: Callable[[str], Sequence[str]],
        dropped: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__(flat)
        self._dropped = dropped
        self._rank = rank
        self._post = post
        self._roll = roll
        self.parties = tuple(parties)
        self._mine = next(place for place, party in enumerate(parties) if rank in party)
        self._traffic = traffic
        others = [place for place in range(len(parties)) if place != self._mine]
        self._mirrors = MirrorClock(others, self._mirrored, lambda place: post.arrived(parties[place][0]))
        self._announced: Announcements | None = None
        self._clock = -1  # of the last exchange after which messages may be under way
        self._texts = texts

    def has(self, exchange: Exchange) -> bool:
        return exchange.parties == self.parties

    def begin(self) -> None:
        if self._base is not None:
            return
        own, (whose, saved) = self._flat.read(), self._saved
        self._saved = -1, {}
        with self._roll.waiting("the start of the exchange of entries"):
            said = self._texts(str(whose))
        # The saved state is valid only if every worker has loaded its own. Entries that another worker held back are in
        # that worker's replica, and this worker must not send them too.
        if saved and all(text == str(rank) for rank, text in enumerate(said)):
            self._begin_with(saved[BASE].to("cpu", own.dtype, copy=True), saved[HELD].to(own.dtype))
        else:
            self._begin_with(own)

    def forget(self) -> None:
        super().forget()
        self._clock = -1

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return the held entries and the replica after the last exchange, each of shape (size,).
        Raises :class:`CheckpointError` if entries may be under way from other sites."""
        if self._clock >= 0 and self._mirrors.lacks(self._clock):
            raise CheckpointError(
                "entries of other sites are in flight, and would be missing from the checkpoint: save inside "
                "session.evaluation_model(), which waits for them"
            )
        return super().state_dict()

    def meet(self, exchange: Exchange, moved: Moved) -> ExchangeResult:
        own, movement, finite = self._moved(moved)
        select = exchange.select_of(self._rank)
        if exchange.far.lead or exchange.far.hubs:
            return self._meet_by_way(exchange, moved, own, movement, finite)
        if select.whole and exchange.merge.combined is Combined.SUM:
            return self._meet_whole(own, movement, moved.clock, finite)
        messages, sent_bytes = self._give(select, moved, own, movement)
        heard, more_bytes = self._hear(select, moved.clock, messages)
        assert self._base is not None
        outcome = outcome_of(exchange.merge, own, self._base.numpy(), heard, self._mine)
        return self._written(outcome, sent_bytes + more_bytes, finite)

    def begin_late(
        self, exchange: Exchange, moved: Moved, landed: Callable[[ExchangeResult, float], None]
    ) -> tuple[Callable[[], _Heard], Callable[[_Heard], torch.Tensor]]:
        began_s = time.perf_counter()
        own, movement, finite = self._moved(moved)
        select = exchange.select_of(self._rank)
        messages, sent_bytes = self._give(select, moved, own, movement)

        def hear() -> _Heard:
            return time.perf_counter(), *self._hear(select, moved.clock, messages)

        def arrive(found: _Heard) -> torch.Tensor:
            here_s, heard, more_bytes = found
            assert self._base is not None
            outcome = outcome_of(exchange.merge, own.copy(), self._base.numpy(), heard, self._mine)
            self._spare, self._base = self._base, torch.from_numpy(outcome)
            landed(self._met(sent_bytes + more_bytes, finite), gave_s + time.perf_counter() - here_s)
            return torch.from_numpy(np.subtract(outcome, own, out=own))

        gave_s = time.perf_counter() - began_s
        return hear, arrive

    def _give(
        self, select: Selection, moved: Moved, own: Array, movement: Array
    ) -> tuple[dict[int, bytes | memoryview], int]:
        """Pick and send if this worker is the speaker; return its own message, by place, and the bytes sent."""
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
        """Return the messages of all parties, by place, and the bytes forwarded; waits."""
        with self._roll.waiting(f"the exchange of entries after step {clock}", _PLACE):
            sent_bytes = self._gather(messages, self._rank == self.parties[self._mine][0], select.beside)
        return {place: self._read(place, one, clock, self._flat.size) for place, one in messages.items()}, sent_bytes

    def _meet_whole(self, own: Array, movement: Array, clock: int, finite: bool) -> ExchangeResult:
        """Sum everything that is held, without picking; overwrites ``own`` and ``movement``, each (size,)."""
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

    def _meet_by_way(
        self, exchange: Exchange, moved: Moved, own: Array, movement: Array, finite: bool
    ) -> ExchangeResult:
        """Send the picked entries to others or to a hub; receive those that are here or due."""
        assert self._sums is not None
        assert exchange.select is not None
        before, picked = sum(one.sent_bytes for one in self._traffic), None
        if self._rank == self.parties[self._mine][0]:
            self._sums.add(movement)
            picked = self._sums.take(self._threshold.within(exchange.select), own, moved.rate)
            self._picked = picked.part
        if exchange.far.hubs:
            far = self._far_bytes()
            own += self._by_hubs(exchange.far.hubs, picked, moved.clock)
            self._threshold.sent_bytes = self._far_bytes() - far
        else:
            if self._clock < 0:
                self._mirrors.begin(moved.clock - 1)
            self._clock = moved.clock
            if picked is not None:
                message = pack(picked, moved.clock, moved.weight)
                if exchange.far.barrier_bytes:
                    self._announcing(exchange.far.barrier_bytes).leaves(picked, len(message))
                self._threshold.sent_bytes = self._send(message)
            own += self._heard(moved.clock, moved.clock - exchange.far.lead)
        return self._written(own, sum(one.sent_bytes for one in self._traffic) - before, finite)

    def _far_bytes(self) -> int:
        return sum(one.sent_bytes for place, one in enumerate(self._traffic) if place != self._mine)

    def _announcing(self, most_bytes: float) -> Announcements:
        if self._announced is None:
            speakers = {place: party[0] for place, party in enumerate(self.parties) if place != self._mine}
            self._announced = Announcements(self._post, speakers, self._traffic, self._flat.size, most_bytes)
        return self._announced

    def _by_hubs(self, groups: Sequence[Party], picked: Picked | None, clock: int) -> Array:
        """Return the sum of other parties' entries, shape (size,), the same on all workers of a party."""
        party = self.parties[self._mine]
        with self._roll.waiting(f"the exchange of entries after step {clock}", _PLACE):
            if picked is None:
                return self._values(party[0], clock, self._flat.size).dense()
            receive = partial(self._values, size=self._flat.size)
            others = Overlay(groups, self._rank, self._tell, receive).heard(picked, clock)
            self._hand_on(others, clock)
        return others

    def _hand_on(self, others: Array, clock: int) -> None:
        party = self.parties[self._mine]
        if party[1:]:
            message = pack(sparse(others), clock)
            for rank in party[1:]:
                self._tell(rank, message)

    def catch_up(self) -> None:
        if self._clock >= 0 and not self._dropped():
            assert self._base is not None
            others = torch.from_numpy(self._heard(self._clock, self._clock))
            self._flat.add(others, 1.0)
            self._base.add_(others)  # not the replica: it may contain a step that the next exchange sends

    def _heard(self, clock: int, due: int) -> Array:
        """Return the sum, shape (size,), of entries that a party takes in now, the same on all its workers."""
        party = self.parties[self._mine]
        with self._roll.waiting(f"entries of step {due}", _PLACE):
            if self._rank != party[0]:
                self._mirrors.begin(due)  # the speaker has received at least these steps
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
        place = next(place for place, party in enumerate(self.parties) if rank in party)
        with self._traffic[place].waiting():
            message = self._post.receive(rank)
        return self._read(place, message, clock, size).picked

    def _send(self, message: bytes) -> int:
        sent_bytes = 0
        for place, party in enumerate(self.parties):
            if place != self._mine:
                self._post.send(party[0], message)
                self._traffic[place].sent_bytes += len(message)
                sent_bytes += len(message)
        return sent_bytes

    def _gather(self, messages: dict[int, bytes | memoryview], speaks: bool, beside: bool) -> int:
        """Collect and forward the messages of all parties; the own party's only if unsent entries wait outside the
        replica."""
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
                f"rank {self.parties[place][0]} sends entries of step {found.clock}, but rank {self._rank} is at "
                f"step {clock}: all ranks must run the same loop. Look for a break, continue or return that only "
                "some reach"
            )
        return found

    def close(self, failed: bool) -> None:
        if self._dropped() and not failed:  # in the background, because the script must not wait here
            threading.Thread(target=_say_goodbye, args=(self._post,), name="uneven-goodbye").start()
            return
        with self._roll.waiting("the end of the exchanges of entries"):
            self._post.close(failed)


def _say_goodbye(post: PeerMessages) -> None:
    with suppress(RuntimeError):  # a peer has failed, and no caller is left to report it to
        post.close(failed=False)


def peers_of(rank: int, parties: Sequence[Party]) -> Party:
    """Return the peers of a worker: for a speaker all other speakers and its party, for another worker its speaker."""
    mine = next(party for party in parties if rank in party)
    if rank != mine[0]:
        return (mine[0],)
    return tuple(sorted({*(party[0] for party in parties if party is not mine), *mine[1:]}))


def most_bytes(size: int) -> int:
    """Return the largest size of a message for a vector of this length, including headers."""
    return 2 * HEADER_BYTES + 8 * size
