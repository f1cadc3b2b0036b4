"""No update is lost or applied twice, whatever the network does and however often the shard starts anew."""

from __future__ import annotations

import random

import numpy as np
import pytest
from lossy import ELEMENTS, Net, link, vector

from uneven.runtime.parameter_server.pure.roster import Patience
from uneven.runtime.parameter_server.pure.shard import Shard
from uneven.runtime.parameter_server.pure.wire import Kind, Message, encode


@pytest.mark.parametrize("seed", range(30))
def test_every_update_arrives_exactly_once(seed: int) -> None:
    rng = random.Random(1000 + seed)
    size = rng.randint(1, 4)
    net = Net(size, seed)
    total, clocks = 0, [0] * size
    for _ in range(150):
        event = rng.random()
        rank = rng.randrange(size)
        if event < 0.15:
            clocks[rank] += 1
            value = rng.randint(1, 9)
            total += value
            how = rng.random()
            if how < 0.3:
                net.movement(rank, clocks[rank], float(value))
            elif how < 0.6:
                net.push(rank, clocks[rank], float(value))
            else:
                net.push_pull(rank, clocks[rank], float(value), wait=max(0, min(clocks) - 1))
        elif event < 0.25:
            net.ask(rank)
        elif event < 0.30:
            net.lose()
        elif event < 0.32:
            net.restart()
        elif event < 0.45:
            net.beat()
        else:
            net.move()
    net.settle()
    assert net.shard is not None
    assert net.shard.vector[0].tolist() == [float(total), 0.0, float(sum(clocks))]
    for rank in range(size):
        net.ask(rank, clock=min(clocks))
    net.settle()
    assert not any(one.kept for one in net.links)


def test_a_pull_holds_all_that_its_worker_has_pushed_before() -> None:
    for seed in range(40):
        net = Net(2, seed)
        net.beat()
        while net.move():
            pass
        net.push(0, 1, 5.0)
        number = net.ask(0)
        for _ in range(seed % 7):
            net.move()
        net.lose()
        net.settle()
        assert net.answers[0][number].vector[0][0] == 5.0


def test_all_who_wait_for_one_clock_get_one_copy_whatever_the_network_does() -> None:
    for seed in range(20):
        net, rng = Net(3, seed), random.Random(seed)
        net.settle()
        for clock in range(1, 6):
            numbers = [net.push_pull(rank, clock, float(clock), wait=clock) for rank in range(3)]
            for _ in range(rng.randrange(12)):
                net.move()
            if rng.random() < 0.5:
                net.lose()
            net.settle()
            copies = [net.answers[rank][number] for rank, number in enumerate(numbers)]
            assert {one.vector[0][2] for one in copies} == {3.0 * clock}


def test_the_newest_copy_is_taken_and_the_rest_is_sent_again() -> None:
    net = Net(3, 0)
    net.settle()
    for rank in range(3):
        net.push(rank, 1, 10.0**rank)
        net.settle()
        if rank == 1:
            net.ask(2)  # holds the updates of 0 and 1
            net.settle()
    assert [len(one.kept) for one in net.links] == [1, 1, 1]
    assert [one.held.version for one in net.links] == [0, 0, 2]
    net.restart()
    net.settle()
    for _ in range(3):
        net.beat()
        while net.move():
            pass
    assert net.shard is not None
    assert net.shard.vector[0][0] == 111.0
    assert net.shard.counts["restored"] == 1
    assert net.shard.counts["applied"] == 1  # only that of rank 2


def test_who_was_away_while_the_state_was_restored_loses_what_only_it_held() -> None:
    net = Net(2, 0)
    net.settle()
    net.push(0, 1, 1.0)
    net.ask(0)
    net.settle()
    assert not net.links[0].kept  # rank 0 holds a copy with its update; nobody else does
    life = Shard(9, range(2), Patience(join_s=1.0))
    (want,) = life.take(encode(net.links[1].receive(Message(kind=Kind.WHO, life=9))[0][0]), 0.0)[1] + life.tick(1.5)
    assert want.kind is Kind.WANT
    ((offer,), _) = net.links[1].receive(want)
    life.take(encode(offer), 1.6)
    assert life.counts["left"] == 1
    net.shard = life
    net.push(0, 2, 2.0)
    net.settle()
    assert life.counts["lost"] == 1
    assert life.vector[0][0] == 2.0


def test_a_copy_that_others_went_on_without_is_never_taken_for_the_newest() -> None:
    net = Net(2, 0)
    net.settle()
    for clock in range(1, 4):
        net.push(0, clock, 1.0)
    net.ask(0)
    net.settle()  # rank 0 holds version 3, rank 1 none
    life = Shard(9, range(2), Patience(join_s=1.0))
    (hello,), _ = net.links[1].receive(Message(kind=Kind.WHO, life=9))
    life.take(encode(hello), 0.0)
    (want,) = life.tick(1.5)
    (offer,), _ = net.links[1].receive(want)
    for reply in life.take(encode(offer), 1.6)[1]:
        net.links[1].receive(reply)
    net.shard = life
    net.push(1, 1, 10.0)
    net.ask(1)
    net.settle()  # rank 1 holds version 1 of the new life, and rank 0 has come back with its old copy
    assert net.links[0].life == 9
    assert not net.links[1].kept
    net.restart()
    net.push(0, 4, 100.0)
    net.settle()
    assert net.shard is not None
    assert net.shard.vector[0][0] == 110.0


def test_a_process_that_takes_over_a_rank_goes_on_counting() -> None:
    net = Net(1, 0)
    net.push(0, 1, 1.0)
    net.settle()
    net.links[0] = link(0)
    net.answers[0].clear()
    net.push(0, 2, 2.0)
    net.settle()
    assert net.shard is not None
    assert net.shard.vector[0][0] == 3.0


def test_an_exchange_whose_answer_is_lost_is_answered_alike_and_counted_once() -> None:
    shard, one = Shard(1, range(1)), link(0)
    (want,) = shard.take(encode(one.beat()), 0.0)[1]
    ((offer,), _) = one.receive(want)
    ((welcome,),) = [shard.take(encode(offer), 0.0)[1]]
    one.receive(welcome)
    _, (asked,) = one.request(Kind.EXCHANGE, clock=1, value=0.5, vector=vector(8, 8, 8))
    (first,) = shard.take(encode(asked), 0.0)[1]
    (pong,) = shard.take(encode(one.beat()), 0.0)[1]
    ((again,), _) = one.receive(pong)
    (second,) = shard.take(encode(again), 0.0)[1]
    assert first == second
    assert shard.vector[0].tolist() == [4.0] * ELEMENTS
    assert one.receive(second)[1] == [(asked.number, second)]
    assert np.array_equal(one.held.vector()[0], shard.vector[0])
    assert shard.counts["repeated"] == 1


def test_a_greeting_counts_no_step_whose_update_is_still_to_come() -> None:
    net = Net(2, 0)
    late = net.push_pull(0, 1, 1.0, wait=1)
    net.push_pull(1, 1, 2.0, wait=0)
    net.settle()
    assert net.answers[0][late].vector[0][0] == 3.0  # asked for before anybody was welcomed
    net.restart()
    late = net.push_pull(0, 2, 4.0, wait=2)
    net.push_pull(1, 2, 8.0, wait=0)
    net.settle()
    assert net.answers[0][late].vector[0][0] == 15.0
