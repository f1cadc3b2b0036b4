"""Exchanges of picked entries among workers that leave and join.

Each worker of a party picks the same entries of the same movement, and holds the same rest. So nothing is lost while
one of them is left. An exchange has two rounds, an all-to-all each: of the messages' lengths, and of the messages. The
first worker of each party sends. After a loss a round is repeated as a whole, and the next worker of the party sends.
So the state of a worker changes only after the second round.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from uneven.policy.core.actions import Combined, Exchange, Merge
from uneven.policy.core.membership import Members
from uneven.policy.select import Accumulator, pack, unpack
from uneven.policy.select.pack import Unpacked
from uneven.policy.select.picked import Array, Picked
from uneven.run.lines.communicator import RoundPlace
from uneven.run.lines.control_words import LEAVING
from uneven.run.lines.elastic_communicator import ElasticCommunicator
from uneven.run.lines.group_lines import Pieces
from uneven.run.lines.traffic import Traffic
from uneven.run.replicas.flat import Flat
from uneven.run.replicas.replica import ExchangeResult
from uneven.run.replicas.sparse.unsent import BASE, HELD, Moved, UnsentMovement


def outcome_of(merge: Merge, own: Array, base: Array, heard: Mapping[int, Unpacked], mine: int) -> Array:
    """Return the replica to continue from, shape (size,); overwrites ``own``.

    ``base`` is the replica after the last exchange; ``heard`` holds each party's entries by place, ``mine`` the own
    place.
    """
    places = sorted(heard)  # all workers add up in the same order, so that replicas stay bit-identical
    if merge.combined is Combined.SUM:
        for place in places:
            if place != mine:
                heard[place].picked.add_to(own)
        return own
    weights = [merge.weight(heard[place].weight) for place in places]
    total = sum(weights)
    change = np.zeros_like(base)
    for place, weight in zip(places, weights, strict=True):
        heard[place].picked.add_to(change, weight / total if total > 0 else 1 / len(places))
    return np.add(base, change, out=own)


class ElasticEntries(UnsentMovement):
    """One worker's part in exchanges of picked entries of ``flat``, the trained parameters.

    Args:
        parties: returns those of the current members.
        samples: worker and iteration → its samples up to there that are not in every replica, divided by the replicas
            that hold them.
        leaving: whether this worker is to leave.
        outside: whether what waits is not in the replica.
    """

    def __init__(
        self,
        flat: Flat,
        rounds: ElasticCommunicator,
        traffic: Traffic,
        *,
        parties: Callable[[], Sequence[Members]],
        samples: Callable[[int, int], float],
        leaving: Callable[[], bool],
        outside: bool,
    ) -> None:
        super().__init__(flat)
        self._rank = rounds.membership.worker
        self._rounds = rounds
        self._traffic = traffic
        self._parties = parties
        self._samples = samples
        self._leaving = leaving
        self._outside = outside
        self._party: Members = ()  # of this worker, in the last exchange
        self._emptied = False  # whether this worker has sent all in it

    def has(self, exchange: Exchange) -> bool:
        return True

    def begin(self) -> None:
        if self._base is not None:
            return
        own, (whose, saved) = self._flat.read(), self._saved
        self._saved = -1, {}
        if not saved:
            self._begin_with(own)
            return
        base, held = (saved[name].to("cpu", own.dtype, copy=True) for name in (BASE, HELD))
        if any({whose, self._rank} <= set(party) for party in self._parties()):
            self._begin_with(base, held)
        elif self._outside:
            self._begin_with(base)
        else:  # another site has not sent all of that replica; this one begins with the entries that all have
            self._flat.add(held, -1.0)
            self._begin_with(base.sub_(held))

    def take_over(self) -> None:
        self.begin()

    def may_leave(self, announced: Sequence[float]) -> bool:
        """Return whether all that this worker holds back is sent, or a worker of its party stays, who holds it, too.
        ``announced`` are the members' announcements in the last exchange."""
        said = dict(zip(self._rounds.membership.members, announced, strict=True))
        stays = any(said.get(one, LEAVING) != LEAVING for one in self._party)
        return stays or self._emptied or self._rank != self._party[0]

    def meet(self, exchange: Exchange, moved: Moved) -> ExchangeResult:
        own, movement, finite = self._moved(moved)
        assert self._sums is not None
        assert self._base is not None
        sums, select = Accumulator(self._sums.held + movement), exchange.select_of(self._rank)
        what = f"the exchange of entries after step {moved.clock}"
        self._rounds.begin(RoundPlace(what))  # members may change here, so this worker's party is asked for later
        party = self._party_among(exchange, self._rounds.membership.members)
        everything = Picked(self._flat.size, None, sums.held.copy())
        emptied = party == (self._rank,) and self._leaving()
        picked = everything if emptied else sums.pick(self._threshold.within(select), own, moved.rate)
        message = pack(picked, moved.clock, sum(self._samples(one, moved.iteration) for one in party))
        arrived: dict[int, torch.Tensor] = {}
        self._swap(_lengths(len(message), arrived))
        where = moved.epoch, 2 * moved.clock, moved.iteration, moved.iteration
        self._rounds.begin(RoundPlace(what, *where, confirmed=True))
        there = self._swap(_messages(exchange, self._rank, message, arrived))
        parties = _left(exchange, there)
        party = self._party = self._party_among(exchange, there)
        heard = [unpack(arrived[one[0]].numpy().data, self._flat.size, self._width) for one in parties]
        if len(parties) == 1:  # what waits is owed to no other party
            heard = [heard[0]._replace(picked=everything)]
        mine = parties.index(party)
        outcome = outcome_of(exchange.merge, own, self._base.numpy(), dict(enumerate(heard)), mine)
        sums.sent(heard[mine].picked)
        self._sums, self._picked, self._emptied = sums, heard[mine].picked.part, emptied
        sent_bytes = len(message) * (len(there) - 1) * (self._rank == party[0])
        self._traffic.sent_bytes += sent_bytes
        self._threshold.sent_bytes = arrived[party[0]].numel() * (len(there) - len(party))
        return self._written(outcome, sent_bytes, finite)

    def _party_among(self, exchange: Exchange, members: Members) -> Members:
        return next(one for one in _left(exchange, members) if self._rank in one)

    def _swap(self, pieces: Pieces) -> Members:
        self._rounds.swap(pieces)
        with self._traffic.waiting():
            return self._rounds.land()


def _left(exchange: Exchange, members: Members) -> list[Members]:
    """Return the parties without the workers that are gone."""
    parties = (tuple(one for one in party if one in members) for party in exchange.parties)
    return [party for party in parties if party]


def _lengths(own: int, arrived: dict[int, torch.Tensor]) -> Pieces:
    """Return the pieces of the first round, after which ``arrived`` has the length of each worker's message."""
    length = torch.tensor([own])

    def pieces(members: Members) -> tuple[dict[int, torch.Tensor], dict[int, torch.Tensor]]:
        arrived.update({one: torch.zeros_like(length) for one in members})
        return dict.fromkeys(members, length), arrived

    return pieces


def _messages(exchange: Exchange, rank: int, message: bytes, arrived: dict[int, torch.Tensor]) -> Pieces:
    """Return the pieces of the second round, after which ``arrived`` has the messages of the parties' first workers."""
    own, nothing = torch.frombuffer(bytearray(message), dtype=torch.uint8), torch.empty(0, dtype=torch.uint8)
    arrived |= {one: torch.empty(int(length), dtype=torch.uint8) for one, length in arrived.items()}

    def pieces(members: Members) -> tuple[dict[int, torch.Tensor], dict[int, torch.Tensor]]:
        first = {party[0] for party in _left(exchange, members)}
        incoming = {one: arrived[one] if one in first else nothing for one in members}
        return dict.fromkeys(members, own if rank in first else nothing), incoming

    return pieces
