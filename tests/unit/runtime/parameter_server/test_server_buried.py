"""A worker that is gone for ever: nothing more is taken from it, and what of it is in the copy stays known."""

from __future__ import annotations

import numpy as np
import pytest

from support.shards import LocalShards
from uneven.errors import PeerError
from uneven.runtime.parameter_server import Client, table_of
from uneven.runtime.parameter_server.pure.conversation import Held, Link
from uneven.runtime.parameter_server.pure.roster import Patience
from uneven.runtime.parameter_server.pure.shard import Shard
from uneven.runtime.parameter_server.pure.wire import Entry, Kind, Message, encode

START = np.zeros(6)


def client(shards: LocalShards, rank: int, clock: int = 0) -> Client:
    table = table_of([START.shape], "float64", len(shards))
    return Client(rank, table, [START], shards.line(rank), clock=clock, timeout_s=20.0)


def growing(members: int) -> LocalShards:
    return LocalShards(2, members, patience=Patience(60.0, 60.0), growing=True)


def test_nobody_waits_for_it_and_its_steps_are_counted_for_ever() -> None:
    shards = growing(3)
    one, two, three = (client(shards, rank) for rank in range(3))
    three.push(0, [np.ones(6)]).result()
    three.push(1, [np.ones(6)]).result()
    assert one.remove_member(2).result().clock == 2
    with pytest.raises(PeerError, match="not a member of this run"):
        three.push(2, [np.ones(6)]).result()
    assert two.remove_member(2).result().clock == 2
    for worker in (one, two):
        worker.push(0, [np.ones(6)]).result()
    seen = np.empty(6)
    one.pull(1).into([seen])  # waits for one and two only
    assert seen.tolist() == [4.0] * 6
    two.meet(1)
    one.meet(1).into([seen])
    for worker in (one, two, three):
        worker.close()
    shards.close()


def test_one_that_joins_is_known_and_waited_for() -> None:
    shards = growing(1)
    one = client(shards, 0)
    one.push(0, [np.ones(6)]).result()
    seen, more = np.empty(6), client(shards, 7, clock=1)
    more.pull().into([seen])
    assert seen.tolist() == [1.0] * 6
    one.push(1, [np.ones(6)]).result()
    waits = one.pull(2)
    more.push(1, [np.ones(6)]).result()
    assert waits.into([seen]).least == 2
    assert seen.tolist() == [3.0] * 6
    one.close()
    more.close()
    shards.close()


def test_a_shard_that_is_started_again_hears_who_is_gone_and_knows_the_others() -> None:
    shards = growing(2)
    one, gone, more = client(shards, 0), client(shards, 1), client(shards, 5)
    gone.push(0, [np.ones(6)]).result()
    one.remove_member(1).result()
    gone.close()
    more.push(0, [np.ones(6)]).result()
    seen = np.empty(6)
    one.pull().into([seen])
    for shard in range(2):
        shards.start(shard)
    one.push(0, [np.ones(6)]).result()  # without a wait for the one that is gone
    one.pull().into([seen])
    assert seen.tolist() == [3.0] * 6
    assert one.remove_member(1).result().clock == 1
    one.close()
    more.close()
    shards.close()


def test_a_shard_of_a_fixed_number_of_workers_takes_no_other() -> None:
    shard = Shard(7, range(2))
    assert shard.take(encode(Message(kind=Kind.HELLO, rank=2, elements=6)), 0.0) == (None, [])
    assert shard.counts["not a member of this run"] == 1


def test_one_that_says_again_that_it_is_gone_is_not_waited_for() -> None:
    shards = growing(2)
    one, gone = client(shards, 0), client(shards, 1)
    gone.push(0, [np.ones(6)]).result()
    gone.remove_member(1).result()
    gone.remove_member(1).result()
    one.push(0, [np.ones(6)]).result()
    one.push(1, [np.ones(6)]).result()
    seen = np.empty(6)
    assert one.pull(2).into([seen]).least == 2
    one.close()
    gone.close()
    shards.close()


def test_a_rejected_update_is_no_answer_about_one_that_is_gone() -> None:
    one = Link(0, 77, 0, 1, Held(0, (np.zeros(1),)), life=7)
    update, _ = one.request(Kind.PUSH, clock=1, value=1.0, vector=(np.full(1, np.nan),))
    removal, _ = one.request(Kind.BURY, clock=0, value=0.0, extra=1)
    pull, _ = one.request(Kind.PULL, clock=0, value=20.0)
    _, answers = one.receive(Message(kind=Kind.REFUSED, rank=0, number=update, life=7))
    assert [number for number, _ in answers] == [update, pull]
    buried = Message(kind=Kind.BURIED, rank=0, number=removal, life=7, entries=(Entry(1, False, 0, 0),))
    assert one.receive(buried) == ([], [(removal, buried)])
