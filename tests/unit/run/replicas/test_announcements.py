"""The selective barrier carried between two speakers whose line holds entries back and lets announcements pass."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from uneven.errors import PeerError
from uneven.policy.core.actions import Add, Exchange, Far, Moment, Payload, Significant
from uneven.policy.select import Picked
from uneven.run.lines.traffic import Traffic, TrafficBook
from uneven.run.replicas.flat import Flat
from uneven.run.replicas.sparse.exchange import EntriesExchange, Moved
from uneven.run.replicas.sparse.selective_barrier import Announcements


class SlowLine:
    """Of two: entries arrive when they are waited for, announcements at once."""

    def __init__(self) -> None:
        self.entries: dict[int, deque[bytes]] = {0: deque(), 1: deque()}  # by who sent them
        self.words: dict[int, deque[bytes]] = {0: deque(), 1: deque()}
        self.awaited: list[int] = []


class SlowPost:
    def __init__(self, line: SlowLine, rank: int) -> None:
        self.line, self.rank = line, rank

    def send(self, peer: int, message: bytes) -> None:
        self.line.entries[self.rank].append(message)

    def send_early(self, peer: int, message: bytes) -> None:
        self.line.words[self.rank].append(message)

    def early(self, peer: int) -> list[bytes]:
        found = list(self.line.words[peer])
        self.line.words[peer].clear()
        return found

    def arrived(self, peer: int) -> bool:
        return False

    def receive(self, peer: int) -> memoryview:
        self.line.awaited.append(peer)
        return memoryview(self.line.entries[peer].popleft())


class Roll:
    def waiting(self, what: str, place: str = "") -> Any:
        return torch.no_grad()  # any block will do


def speakers(line: SlowLine) -> list[tuple[nn.Parameter, EntriesExchange]]:
    made = []
    for rank in range(2):
        values = nn.Parameter(torch.ones(50, dtype=torch.float64))
        traffic = [TrafficBook().open(name) for name in "ab"]
        post: Any = SlowPost(line, rank)
        roll: Any = Roll()
        entries = EntriesExchange(Flat([values]), rank, [(0,), (1,)], post, traffic, roll, lambda text: [text, text])
        entries.begin()
        made.append((values, entries))
    return made


def far(kb: float) -> Exchange:
    return Exchange(
        payload=Payload.DELTA, members=(0, 1), merge=Add(), moment=Moment.STEP, select=Significant(0.01),
        parties=((0,), (1,)), far=Far(lead=3, barrier_bytes=1e3 * kb),
    )  # fmt: skip


def play(kb: float, steps: int = 6) -> tuple[SlowLine, list[list[float]]]:
    """Speaker 0 moves one entry a step, 1 none; what 1 then has."""
    line = SlowLine()
    (mine, first), (other, second) = speakers(line)
    read = []
    for clock in range(1, steps + 1):
        with torch.no_grad():
            mine[clock] += 1.0
        first.meet(far(kb), Moved(clock, 1.0))
        second.meet(far(kb), Moved(clock, 1.0))
        read.append(other.detach().tolist())
    first.catch_up()
    second.catch_up()
    assert torch.equal(mine, other)
    return line, read


def test_who_was_told_what_comes_takes_no_step_without_it() -> None:
    line, read = play(kb=1e-3)
    for step, values in enumerate(read, 1):
        assert values[step] == 2.0, "barred, and so there before the next step begins"
    assert line.awaited.count(0) == 6


def test_where_little_is_under_way_a_site_leads_as_far_as_it_may() -> None:
    for kb in (0.0, 100.0):
        _, read = play(kb)
        for step, values in enumerate(read, 1):
            assert values[max(0, step - 3) + 1 : step + 1] == [1.0] * min(3, step), "the mirror clock's bound alone"
            assert values[1 : max(0, step - 3) + 1] == [2.0] * max(0, step - 3)


def test_an_exchange_takes_no_new_memory_for_the_replica_and_for_what_moved() -> None:
    (mine, first), (other, second) = speakers(SlowLine())
    places: list[set[int]] = [set(), set()]
    for clock in range(1, 8):
        with torch.no_grad():
            mine[clock] += 1.0
        for place, entries in enumerate((first, second)):
            entries.meet(far(0.0), Moved(clock, 1.0))
            assert entries._base is not None
            assert entries._movement is not None
            places[place] |= {entries._base.data_ptr(), entries._movement.ctypes.data}
    assert [len(one) for one in places] == [3, 3], "two of the replica, in turn, and one of what moved"
    first.catch_up()
    second.catch_up()
    assert torch.equal(mine, other)


def test_a_step_between_an_exchange_and_an_evaluation_reaches_the_other_site() -> None:
    (mine, first), (other, second) = speakers(SlowLine())
    for clock in (1, 2):
        first.meet(far(0.0), Moved(clock, 1.0))
        second.meet(far(0.0), Moved(clock, 1.0))
        with torch.no_grad():
            mine[9] += 2 - clock
            other[clock] += 2 - clock
        first.catch_up()
        second.catch_up()
    assert mine[9] == 2.0
    assert torch.equal(mine, other)


def test_a_line_that_keeps_up_is_told_nothing() -> None:
    line, posts = SlowLine(), []
    for rank in range(2):
        post: Any = SlowPost(line, rank)
        posts.append(Announcements(post, {1 - rank: 1 - rank}, [Traffic(), Traffic()], 50, 100.0))
    one, two = posts
    picked = Picked(50, np.array([3]), np.array([1.0]))
    for number in range(1, 5):
        one.leaves(picked, 60)
        assert two.due() == {}
        two.taken({0: number})
    one.leaves(picked, 60)
    one.leaves(picked, 60)  # 120 bytes of which nobody has said that they are there
    assert two.due() == {0: 6}
    two.taken({0: 6})
    assert two.due() == {}
    line.words[0].append(b"?")
    with pytest.raises(PeerError, match="are not a message"):
        two.due()
