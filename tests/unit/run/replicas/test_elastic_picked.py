"""Picked entries among workers that leave and join: what is sent, what waits, and where a newcomer begins."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from uneven.policy.core.actions import Add, Exchange, Mean, Moment, Payload, Selection, Significant, TopK
from uneven.policy.core.membership import Members
from uneven.policy.select import pack, unpack
from uneven.policy.select.picked import Picked
from uneven.run.lines.communicator import RoundPlace
from uneven.run.lines.control_words import JOIN_PENDING, LEAVING, NONE
from uneven.run.lines.group_lines import Pieces
from uneven.run.lines.traffic import TrafficBook
from uneven.run.replicas.flat import Flat
from uneven.run.replicas.sparse.elastic_entries import ElasticEntries
from uneven.run.replicas.sparse.unsent import BASE, HELD, Moved

PARTIES = ((0, 1), (2,))
LARGEST, SIGNIFICANT = TopK(0.25, 4), Significant(0.1)


class Rounds:
    """The rounds of one worker. The others send what the test says.

    Attributes:
        others: worker → its message.
        tries: of each round, the members that try it one after the other; the last ones complete it.
        sent: worker → what this one has sent it in the newest round.
    """

    def __init__(self, worker: int) -> None:
        self.membership = SimpleNamespace(worker=worker, members=(0, 1, 2))
        self.others: dict[int, bytes] = {}
        self.tries: list[tuple[Members, ...]] = []
        self.sent: dict[int, Tensor] = {}
        self.settled = -1
        self._pieces: Pieces

    def begin(self, at: RoundPlace) -> None:
        self.settled = at.settles

    def swap(self, pieces: Pieces) -> None:
        self._pieces = pieces

    def land(self) -> Members:
        for members in self.tries.pop(0) if self.tries else (self.membership.members,):
            self.membership.members = members
            outgoing, incoming = self._pieces(members)
        self.sent, worker = dict(outgoing), self.membership.worker
        for one in self.membership.members:
            if one == worker:
                incoming[one].copy_(self.sent[one])
            elif incoming[one].dtype == torch.int64:
                incoming[one][0] = len(self.others.get(one, b""))
            elif incoming[one].numel():
                incoming[one].copy_(torch.frombuffer(bytearray(self.others[one]), dtype=torch.uint8))
        return self.membership.members


class Worker:
    def __init__(self, number: int, select: Selection, parties: Sequence[Members] = PARTIES) -> None:
        self.values = nn.Parameter(torch.full((4,), 8.0, dtype=torch.float64))
        self.rounds, self.leaving = Rounds(number), False
        rounds: Any = self.rounds
        self.exchange = Exchange(
            payload=Payload.DELTA, members=(0, 1, 2), merge=Mean() if select.beside else Add(), moment=Moment.STEP,
            parties=tuple(parties), select=select,
        )  # fmt: skip
        self.entries = ElasticEntries(
            Flat([self.values]), rounds, TrafficBook().open("entries"), parties=lambda: parties,
            samples=lambda one, iteration: {0: 1.0, 1: 1.0, 2: 6.0}[one], leaving=lambda: self.leaving,
            outside=select.beside,
        )  # fmt: skip
        self.entries.begin()

    def moves(self, by: list[float]) -> None:
        self.values.data += torch.tensor(by, dtype=torch.float64)
        self.entries.meet(self.exchange, Moved(1, 0.0, iteration=5))

    def now(self) -> tuple[list[float], list[float], list[float]]:
        """The replica, that after the last exchange, and what waits."""
        state = self.entries.state_dict()
        return self.values.tolist(), state[BASE].tolist(), state[HELD].tolist()


def message(values: list[float], weight: float) -> bytes:
    places = np.flatnonzero(values)
    return pack(Picked(4, places, np.array(values)[places]), 1, weight)


def test_the_first_of_each_party_sends_and_each_of_it_holds_the_rest() -> None:
    """0.25 of the own movement, with a weight of 2 samples, and of another site's, with 6."""
    for number in (0, 1):
        worker = Worker(number, LARGEST)
        worker.rounds.others = {0: message([4.0, 0.0, 0.0, 0.0], 2.0), 2: message([0.0, 0.0, 0.0, 8.0], 6.0)}
        worker.moves([4.0, 1.0, 0.0, 0.0])
        after = [9.0, 8.0, 8.0, 14.0]
        assert worker.now() == (after, after, [0.0, 1.0, 0.0, 0.0])
        assert worker.rounds.settled == 5
        assert [one.numel() > 0 for one in worker.rounds.sent.values()] == [number == 0] * 3


def test_movements_that_wait_stay_in_the_replica_where_they_are_added() -> None:
    worker = Worker(0, SIGNIFICANT)
    worker.rounds.others = {2: message([0.0, 0.0, 0.0, 8.0], 6.0)}
    worker.moves([4.0, 0.5, 0.0, 0.0])
    after = [12.0, 8.5, 8.0, 16.0]
    assert worker.now() == (after, after, [0.0, 0.5, 0.0, 0.0])


@pytest.mark.parametrize("tries", [[((0, 1, 2), (1, 2))], [((0, 1, 2),), ((0, 1, 2), (1, 2))]])
def test_the_next_of_a_party_sends_once_more_when_the_first_is_lost(tries: list[tuple[Members, ...]]) -> None:
    """In either round, and nothing of the first try stays."""
    worker = Worker(1, LARGEST)
    worker.rounds.others, worker.rounds.tries = {2: message([0.0, 0.0, 0.0, 8.0], 6.0)}, tries
    worker.moves([4.0, 1.0, 0.0, 0.0])
    after = [9.0, 8.0, 8.0, 14.0]
    assert worker.now() == (after, after, [0.0, 1.0, 0.0, 0.0])
    found = unpack(worker.rounds.sent[2].numpy().data, 4, 8)
    assert (found.weight, found.picked.dense().tolist()) == (2.0, [4.0, 0.0, 0.0, 0.0])


@pytest.mark.parametrize("select", [LARGEST, SIGNIFICANT])
def test_the_last_party_owes_nothing(select: Selection) -> None:
    """When the other site is lost, what waits enters the replica, or is in it."""
    worker = Worker(0, select)
    worker.rounds.others = {2: message([0.0, 0.0, 0.0, 0.0], 6.0)}
    worker.moves([0.0, 0.0, 0.5, 0.25])
    worker.rounds.tries = [((0, 1, 2), (0, 1))]
    worker.moves([1.0, 0.0, 0.0, 0.0])
    replica, base, waits = worker.now()
    first = 0.5 * 2 / 8 if select.beside else 0.5  # the largest entry, by samples
    assert replica == base == [9.0, 8.0, 8.0 + first, 8.25]
    assert waits == [0.0] * 4


def test_the_last_of_a_site_sends_all_before_it_leaves() -> None:
    worker = Worker(2, LARGEST)
    worker.rounds.others = {0: message([0.0, 0.0, 0.0, 0.0], 2.0)}
    worker.moves([4.0, 1.0, 2.0, 0.0])
    announced = [NONE, NONE, LEAVING]
    assert not worker.entries.may_leave(announced), "it was told to after it had picked"
    worker.leaving = True
    worker.moves([0.0, 0.0, 0.0, 0.0])
    assert worker.now()[2] == [0.0] * 4
    assert worker.entries.may_leave(announced)


@pytest.mark.parametrize(
    ("number", "announced", "may"),
    [
        (0, [LEAVING, NONE, NONE], True),
        (0, [LEAVING, JOIN_PENDING, NONE], True),
        (0, [LEAVING, LEAVING, NONE], False),
        (1, [LEAVING, LEAVING, NONE], True),
    ],
)
def test_of_a_site_that_leaves_as_a_whole_one_stays_for_another_exchange(
    number: int, announced: list[float], may: bool
) -> None:
    worker = Worker(number, LARGEST)
    worker.leaving = True
    worker.rounds.others = {0: message([4.0, 0.0, 0.0, 0.0], 2.0), 2: message([0.0, 0.0, 0.0, 8.0], 6.0)}
    worker.moves([4.0, 1.0, 0.0, 0.0])
    assert worker.now()[2] == [0.0, 1.0, 0.0, 0.0]
    assert worker.entries.may_leave(announced) is may


@pytest.mark.parametrize(
    ("select", "parties", "replica", "waits"),
    [
        (LARGEST, ((0, 1), (2,)), 9.0, 0.5),  # one more of the donor's site
        (LARGEST, ((0,), (1,), (2,)), 9.0, 0.0),
        (SIGNIFICANT, ((0, 1), (2,)), 9.0, 0.5),
        (SIGNIFICANT, ((0,), (1,), (2,)), 8.5, 0.0),  # the first of a new site
    ],
)
def test_a_newcomer_or_a_resumed_worker_begins_where_its_site_is_or_with_what_all_have(
    select: Selection, parties: Sequence[Members], replica: float, waits: float
) -> None:
    worker = Worker(1, select, parties)
    state = {BASE: torch.full((4,), 9.0, dtype=torch.float64), HELD: torch.full((4,), 0.5, dtype=torch.float64)}
    worker.values.data.fill_(9.0)
    worker.entries.forget()
    worker.entries.load_state_dict(state, 0)
    worker.entries.take_over()
    assert worker.now() == ([replica] * 4, [replica] * 4, [waits] * 4)
