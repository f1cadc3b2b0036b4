"""Merges beside the training: who is let in after which, who leaves, and which samples of a lost worker come again."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined] # its stubs say that it is private

from uneven.policy.core.membership import Generation
from uneven.policy.samples.leases import Run
from uneven.policy.samples.paced import OwnPart
from uneven.policy.samples.supply import SamplesWanted
from uneven.run.lines.communicator import RoundPlace, VectorLine
from uneven.run.lines.traffic import TrafficBook
from uneven.run.membership.agreed import BackgroundMembers
from uneven.run.membership.elastic_run import LeftRun
from uneven.run.membership.generations import Membership
from uneven.run.step.build import make_leased_pace
from uneven.runtime.tcp_store import reach

N = 40


class Loop:
    """The loop of a run, as far as it has to hear of members."""

    def __init__(self) -> None:
        self.members: list[tuple[int, ...]] = []

    def members_changed(self, generation: Generation) -> None:
        self.members.append(generation.members)


class Worker:
    """One worker, which merges a number as soon as it is told to, in the thread that tells it."""

    idle = True

    def __init__(self, number: int, founders: int, port: int) -> None:
        self.sum, self.loop, self.gave = 0.0, Loop(), ""
        connect = partial(reach, "127.0.0.1", port, 60.0)
        self.membership = Membership(number, founders, (1, 4), connect, silence_s=0.0, timeout_s=20.0)
        self.elastic = BackgroundMembers(self.membership, lambda record: None, lambda text, event="": None)
        self.elastic.give_state = self._give  # type: ignore[method-assign]
        self.line = VectorLine(self.elastic.rounds, TrafficBook().open("parameters"))
        make_leased_pace(self.elastic, 20.0, ahead=True)
        self.elastic.merging = self
        self.elastic.bind(self.loop)  # type: ignore[arg-type]

    def _give(self, key: str, those: tuple[int, ...], lost: object = None) -> None:
        self.gave = f"{key} of {those}"

    def meet(self) -> None:
        self.elastic.rounds.circle = self.membership.circle("exchanges")

    def join(self) -> None:
        new = self.membership.ask({}, lambda waited_s: None)
        self.elastic.rounds.exchanges = new.exchange
        self.elastic.rounds.renew(new)
        self.meet()

    def merge(self) -> None:
        self.elastic.begins_merge()
        self.line.total(torch.zeros(1), RoundPlace("a merge"), words=False)
        vector = torch.tensor([self.membership.worker + 1.0])
        self.line.total(vector, RoundPlace("a merge"))
        self.sum = vector.item()
        self.elastic.merged()

    def learn(self, samples: int) -> Run:
        run = self.elastic.claims.take(0, SamplesWanted(samples, 1, 40)).result()
        assert run is not None
        part = OwnPart(iteration=0, epoch=0, start=run[0], size=samples, shares=(samples,) * 4, rank=0)
        self.elastic.claims.learnt(part)
        return run

    def tend_until(self, members: tuple[int, ...]) -> None:
        while not self.elastic.tend() or self.membership.members != members:
            time.sleep(0.005)


class Crew:
    """Workers of one run, each in a thread where they have to meet."""

    def __init__(self) -> None:
        self.kept = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.made: list[Worker] = []

    def worker(self, number: int, founders: int) -> Worker:
        self.made.append(Worker(number, founders, self.kept.port))
        return self.made[-1]

    def founders(self, count: int) -> list[Worker]:
        found = [self.worker(one, count) for one in range(count)]
        together(*(one.meet for one in found))
        return found


def together(*calls: Callable[[], object]) -> None:
    with ThreadPoolExecutor(len(calls)) as pool:
        for one in [pool.submit(call) for call in calls]:
            one.result(60.0)


@pytest.fixture
def crew() -> Iterator[Crew]:
    it = Crew()
    yield it
    for one in it.made:
        one.elastic.claims.stop()
        if one.elastic.rounds.circle is not None:
            one.elastic.rounds.circle.drop()
        one.membership.close()
    it.made.clear()
    del it.kept
    gc.collect()  # a worker and its elastic run know each other


def test_a_newcomer_is_let_in_by_the_loop_and_not_on_the_way_to_an_evaluation(crew: Crew) -> None:
    (one,) = crew.founders(1)
    new = crew.worker(4, 1)
    with ThreadPoolExecutor(1) as door:
        joined = door.submit(new.join)
        while not one.membership.somebody_asks:
            time.sleep(0.005)
        one.elastic.rest()
        assert (one.membership.members, one.sum) == ((0,), 1.0)
        assert not one.elastic.tend(), "a merge began as somebody asks"
        joined.result(60.0)
    assert (one.membership.members, one.loop.members, one.gave) == ((0, 4), [], "")
    one.elastic.step_over()
    assert (one.loop.members, one.gave) == ([(0, 4)], "1/0 of (0, 4)")
    together(one.merge, new.merge)
    assert one.sum == new.sum == 6.0


def test_a_request_to_join_keeps_no_worker_from_the_end_of_an_epoch(crew: Crew) -> None:
    one, two = crew.founders(2)
    crew.worker(4, 2).membership.board.ask(4, {})
    with ThreadPoolExecutor(1) as pool:
        rests = pool.submit(two.elastic.rest)
        while not one.membership.somebody_asks:
            time.sleep(0.005)
        quiet = any(one.elastic.tend() for _ in range(20))
        one.elastic.rest()
        rests.result(60.0)
    assert quiet, "each merge led to another one, which admitted no worker"
    assert one.elastic.urgent, "no worker rests now, so the request counts again"


@pytest.mark.parametrize("begun", [False, True])
def test_of_a_lost_worker_all_that_is_in_no_merge_comes_again(crew: Crew, begun: bool) -> None:
    one, two = crew.founders(2)
    two.learn(5)
    together(one.merge, two.merge)
    run = two.learn(3)
    two.elastic.begins_merge()  # it has noted what is in it

    def dies() -> None:
        if begun:  # all have begun this merge, and it brings nothing
            two.line.total(torch.zeros(1), RoundPlace("a merge"), words=False)
        two.membership.board.remove_member(1, "it was killed")

    together(dies, *[one.merge] * begun)
    one.tend_until((0,))
    assert (one.sum, one.loop.members) == (1.0, [(0,)])
    assert one.learn(9) == run, "what comes again goes first"
    assert one.elastic.claims.known(0) == (8, [run]), "one has it in hand"


def test_a_worker_that_leaves_has_all_that_it_learnt_in_a_merge(crew: Crew) -> None:
    one, two = crew.founders(2)
    two.learn(5)
    two.elastic.leaving = True

    def leaves() -> None:
        with pytest.raises(LeftRun):
            two.elastic.step_over()

    together(leaves, lambda: one.tend_until((0,)))
    assert one.loop.members == [(0,)]
    assert one.elastic.claims.known(0) == (5, [])


def test_who_waits_at_the_end_of_an_epoch_takes_part_in_the_merges_of_others(crew: Crew) -> None:
    one, two = crew.founders(2)
    two.learn(5)
    together(two.elastic.settle, partial(await_sum, one, 3.0))
    assert not two.elastic.claims.owes


def await_sum(one: Worker, total: float) -> None:
    while one.sum != total:
        one.elastic.tend()
        time.sleep(0.005)
