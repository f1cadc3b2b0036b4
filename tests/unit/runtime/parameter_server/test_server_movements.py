"""Outer steps on the movements of the first so many: which merge takes them in, and when; time is a number here."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from lossy import ELEMENTS, TABLE, vector

from uneven.runtime.parameter_server.pure.conversation import Held, Link
from uneven.runtime.parameter_server.pure.roster import Patience
from uneven.runtime.parameter_server.pure.shard import Shard
from uneven.runtime.parameter_server.pure.wire import Kind, Message, Refusal, encode


class Crew:
    """Members of one shard, who send what they have moved."""

    def __init__(self, members: int) -> None:
        self.shard = Shard(7, range(members), Patience(silence_s=1e3))
        self.sequences = [0] * members
        for rank in range(members):
            self.say(Kind.HELLO, rank, elements=ELEMENTS)
        self.say(Kind.OFFER, 0, elements=ELEMENTS, vector=vector(0, 0, 0))

    def say(self, kind: Kind, rank: int, now_s: float = 0.0, **more: object) -> list[Message]:
        message = Message(kind=kind, rank=rank, life=7, table=TABLE, **more)  # type: ignore[arg-type]
        return self.shard.take(encode(message), now_s)[1]

    def move(self, rank: int, number: float, now_s: float = 0.0, **more: float) -> list[Message]:
        self.sequences[rank] += 1
        what: dict[str, object] = {"value": 1.0, "extra": 2, "momentum": 0.5, **more}
        carried = {"elements": ELEMENTS, "vector": vector(number, 0, 0), "sequence": self.sequences[rank]}
        return self.say(Kind.MOVEMENT, rank, now_s, **what, **carried)


def told(messages: list[Message]) -> dict[int, float]:
    """Member → first number of the copy that it is told."""
    return {one.rank: float(np.concatenate(one.vector)[0]) for one in messages if one.kind is Kind.COPY}


def test_the_copy_takes_an_outer_step_on_the_mean_of_the_first_and_late_ones_count_in_the_next() -> None:
    crew = Crew(3)
    assert crew.move(0, 2.0) == []
    assert told(crew.move(1, 6.0, value=3.0)) == {0: 7.5, 1: 7.5}, "G = 5, V = 5: 0 + G + V / 2"
    assert crew.move(2, 1.0) == [], "too late for that one, and so the first of the next"
    assert told(crew.move(0, 1.0)) == {0: 10.25, 2: 10.25}, "G = 1, V = 0.5 × 5 + 1: 7.5 + 1 + 3.5 / 2"
    assert crew.shard.version == 2
    assert (crew.shard.counts["late"], crew.shard.counts["applied"]) == (0, 4)


def test_a_quorum_waits_for_others_a_part_of_the_time_that_it_took() -> None:
    crew = Crew(4)
    crew.move(0, 1.0, 10.0, grace=0.5, momentum=0.0)
    assert crew.move(1, 1.0, 14.0, grace=0.5, momentum=0.0) == []
    assert crew.move(2, 4.0, 15.0, grace=0.5, momentum=0.0) == []
    assert crew.shard.tick(15.9) == []
    assert told(crew.shard.tick(16.0)) == {0: 2.0, 1: 2.0, 2: 2.0}
    crew.move(0, 0.0, 20.0, grace=9.0, momentum=0.0)
    crew.move(1, 0.0, 21.0, grace=9.0, momentum=0.0)
    crew.move(2, 0.0, 21.0, grace=9.0, momentum=0.0)
    assert told(crew.move(3, 4.0, 22.0, grace=9.0, momentum=0.0)) == dict.fromkeys(range(4), 3.0), "all are there"


@pytest.mark.parametrize("how", ["leaves", "is through", "meets"])
def test_a_merge_does_not_wait_for_who_does_not_come(how: str) -> None:
    crew = Crew(2)
    assert crew.move(0, 2.0, momentum=0.0) == []
    if how == "leaves":
        out = crew.say(Kind.LEAVE, 1)
    elif how == "is through":
        out = crew.say(Kind.PING, 1, extra=1)
    else:
        out = crew.say(Kind.MEET, 1, clock=1, value=100.0)
    assert told(out) == {0: 2.0}


def test_what_is_in_no_copy_yet_of_a_worker_that_is_gone_is_in_no_later_one() -> None:
    crew = Crew(3)
    assert crew.move(0, 8.0, momentum=0.0) == []
    buried = crew.say(Kind.BURY, 1, extra=0)[0]
    assert buried.entries[0].clock == 0, "its samples come again"
    assert crew.move(1, 2.0, momentum=0.0) == []
    assert told(crew.move(2, 4.0, momentum=0.0)) == {1: 3.0, 2: 3.0}


def test_what_is_in_no_copy_yet_is_sent_again_to_a_shard_that_starts_anew_and_counts_once() -> None:
    crew = Crew(2)
    one = Link(0, TABLE, 0, ELEMENTS, Held(0, vector(0, 0, 0)))
    one.receive(Message(kind=Kind.WELCOME, life=7))
    how = {"clock": 1, "extra": 2}
    number, (sent,) = one.request(Kind.MOVEMENT, value=1.0, vector=vector(2, 0, 0), momentum=0.0, **how)
    assert crew.shard.take(encode(sent), 0.0)[1] == []
    (pong,) = crew.shard.take(encode(one.beat()), 0.0)[1]
    assert one.receive(pong) == ([], []), "it is there, and waits: sent once"
    assert crew.shard.take(encode(sent), 0.0)[1] == [], "and a second time it is the same"
    _, (pull,) = one.request(Kind.PULL, clock=0, value=100.0)
    (copy,) = crew.shard.take(encode(pull), 0.0)[1]
    assert told([copy]) == {0: 0.0}, "the copy as it is meanwhile"
    one.receive(copy)

    crew = Crew(2)
    again, _ = one.receive(Message(kind=Kind.WELCOME, life=7))
    assert [(message.kind, message.number) for message in again] == [(Kind.MOVEMENT, number)]
    crew.shard.take(encode(again[0]), 0.0)
    (copy, _) = sorted(crew.move(1, 4.0, momentum=0.0), key=lambda message: message.rank)
    assert float(np.concatenate(copy.vector)[0]) == 3.0
    assert one.receive(copy) == ([], [(number, copy)])
    assert not one.kept
    (repeated,) = crew.shard.take(encode(again[0]), 0.0)[1]
    assert told([repeated]) == {0: 3.0}, "its answer was lost: the copy as it is, with nothing added"


def test_numbers_that_are_not_finite_are_refused_with_all_that_they_would_spoil() -> None:
    crew = Crew(2)
    assert [one.kind for one in crew.move(0, float("nan"))] == [Kind.REFUSED]
    crew.sequences[0] -= 1
    crew.move(0, 3e38, momentum=0.9)
    out = crew.move(1, 3e38, momentum=0.9)
    assert {one.kind for one in out} == {Kind.REFUSED}
    assert {one.extra for one in out} == {list(Refusal).index(Refusal.VALUE)}
    assert (crew.shard.version, crew.shard.movements.merged) == (0, 0)


def test_outer_steps_go_on_from_what_they_are_given_before_the_first_and_say_what_they_keep() -> None:
    crew = Crew(2)
    kept = {"elements": ELEMENTS, "vector": vector(4, 0, 0)}
    (reply,) = crew.say(Kind.KEEP, 1, **kept)
    assert (reply.kind, float(reply.vector[0][0])) == (Kind.KEPT, 4.0)
    crew.move(0, 2.0)
    assert told(crew.move(1, 2.0)) == {0: 4.0, 1: 4.0}, "G = 2, V = 0.5 × 4 + 2: 0 + 2 + 4 / 2"
    for kind, more in ((Kind.KEEP, kept), (Kind.ASK, {})):
        (reply,) = crew.say(kind, 1, **more)
        assert float(reply.vector[0][0]) == 4.0, "V; nobody sets it any more"
    one = Link(0, TABLE, 0, ELEMENTS, Held(0, vector(0, 0, 0)), life=7)
    number, _ = one.request(Kind.ASK, clock=0, value=0.0)
    answer = Message(kind=Kind.KEPT, number=number, life=7, version=9, elements=ELEMENTS, vector=vector(4, 0, 0))
    assert one.receive(answer) == ([], [(number, answer)])
    assert one.held.version == 0, "it is no copy"
    fresh = Crew(1)
    (refused,) = fresh.say(Kind.KEEP, 0, elements=ELEMENTS, vector=vector(float("inf"), 0, 0))
    assert refused.kind is Kind.REFUSED


def waiting(*orders: tuple[int, ...]) -> list[set[int]]:
    """Who waits at each shard when the movements of three learners have come there, in these orders."""
    shards = [Crew(3) for _ in orders]
    for crew, order in zip(shards, orders, strict=True):
        for rank in order:
            crew.move(rank, 1.0)
    return [set(crew.shard.movements.open) for crew in shards]


def test_at_three_shards_all_can_wait_for_each_other_and_at_two_somebody_always_comes() -> None:
    assert waiting((0, 1, 2), (1, 2, 0), (0, 2, 1)) == [{2}, {0}, {1}], "a session refuses this"
    for first, second in itertools.product(itertools.permutations(range(3)), repeat=2):
        assert set().union(*waiting(first, second)) < {0, 1, 2}


WRONG = ({"momentum": 1.0}, {"momentum": -0.1}, {"grace": -1.0}, {"value": 0.0}, {"extra": 3})


@pytest.mark.parametrize("wrong", WRONG)
def test_what_makes_no_sense_is_refused(wrong: dict[str, float]) -> None:
    crew = Crew(2)
    assert [one.kind for one in crew.move(0, 1.0, **wrong)] == [Kind.REFUSED]
    assert not crew.shard.movements.open
