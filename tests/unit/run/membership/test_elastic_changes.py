"""Changes of members: in which order they hold, in which thread, and what a newcomer takes over."""

from __future__ import annotations

import gc
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import torch
from elastic_crew import BACKGROUND, FOREGROUND, SERVER, Crew, Worker, together

from uneven.errors import PeerError, TrainingError
from uneven.policy.core.membership import Generation
from uneven.policy.samples.order import Cursor, Portion
from uneven.run.lines import elastic_communicator
from uneven.run.lines.abortable_group import GroupAborted
from uneven.run.lines.communicator import RoundPlace
from uneven.run.lines.control_words import WordsMessage
from uneven.run.lines.elastic_communicator import ElasticCommunicator
from uneven.run.membership import generations
from uneven.run.membership.elastic_run import LeftRun


@pytest.fixture
def crew() -> Iterator[Crew]:
    it = Crew()
    yield it
    for one in it.made:
        if hasattr(one.elastic, "claims"):
            one.elastic.claims.stop()
        if one.rounds.circle is not None:
            one.rounds.circle.drop()
        one.membership.close()
    it.made.clear()
    del it.kept
    gc.collect()  # a worker and its elastic run know each other


def left(number: int, members: tuple[int, ...], *gone: int, exchange: int = 0, donor: int | None = None) -> Generation:
    why = {str(one): "it was killed" for one in gone}
    return Generation(
        number=number, members=members, border=number, exchange=exchange, donor=donor, came={}, left=gone, why=why
    )


# -------------------------------------------------------------------- the order of generations
def test_a_generation_that_waits_for_the_next_round_holds_before_a_later_one_that_holds_now(crew: Crew) -> None:
    """Worker 0 was to get the sums from 1, which was lost, too: so all make them again among those that are left."""
    one = crew.worker(FOREGROUND, 0, 3)
    one.elastic.changed(left(1, (0, 1), 2, exchange=1), False, time.monotonic())
    assert one.loop.members == []
    one.elastic.changed(left(2, (0,), 1), True, time.monotonic())
    one.elastic.flush()
    assert one.loop.members == [(0, 1), (0,)]
    assert [(record.generation, record.left) for record in one.records] == [(1, (2,)), (2, (1,))]
    assert one.elastic.changing.members(5) == (0,)
    assert one.rounds.words._size == 1, "the words are of one member"


def test_in_the_background_both_are_taken_up_between_two_steps_and_neither_has_brought_anything(crew: Crew) -> None:
    one = crew.worker(BACKGROUND, 0, 3)
    one.rounds.exchanges = 4
    one.elastic.changed(left(1, (0, 1), 2, exchange=5), False, time.monotonic())
    one.elastic.changed(left(2, (0,), 1, exchange=4), True, time.monotonic())
    one.membership.history[2] = (0,)
    one.rounds.exchanges, one.rounds.by = 5, 2
    one.elastic.flush()
    assert (one.loop.members, one.lost) == ([], [])
    one.elastic.step_over()
    assert (one.loop.members, one.lost) == ([(0, 1), (0,)], [(2, 4), (1, 4)])


def test_samples_of_a_round_that_is_made_again_are_not_given_up_before_it_is_complete(crew: Crew) -> None:
    """A change holds at once in the thread that makes the round; the round decides whose samples are in it."""
    one = crew.worker(FOREGROUND, 0, 2)
    book = one.elastic.returned
    book.start(Cursor())
    for at in range(3):
        book.drawn(Portion(iteration=at, epoch=0, start=4 * at, size=4, shares=(2, 2), members=(0, 1)))
    one.rounds.begin(RoundPlace("a sum", settles=1))
    one.elastic.changed(left(1, (0,), 1), True, time.monotonic())
    assert one.loop.members == [(0,)]
    assert book.waiting(9) == 2, "of the iteration that is not in this round"
    one.elastic.landed(1, (0, 1), ())
    assert book.waiting(9) == 2, "the lost one's samples were in it"


class Heard:
    """The listener of rounds; notes the changes."""

    def __init__(self) -> None:
        self.changes: list[tuple[int, bool]] = []

    def flush(self) -> None: ...

    def announce(self) -> float:
        return 0.0

    def changed(self, generation: Generation, now: bool, began_s: float) -> None:
        self.changes.append((generation.number, now))

    def landed(self, settles: int, contributors: tuple[int, ...], groups: tuple[tuple[int, ...], ...]) -> None: ...

    def drawn(self) -> int:
        return -1


class Cut:
    """A group whose donor is lost before it has sent the sums."""

    def broadcast(self, tensor: torch.Tensor, source: int) -> None:
        raise GroupAborted("the donor is gone")

    def wait(self, work: None) -> None: ...

    def drop(self, *more: Any) -> None: ...


@pytest.mark.parametrize("outside", [False, True])
def test_a_generation_whose_donor_is_lost_is_passed_on_too(crew: Crew, outside: bool) -> None:
    """Only it names the members that were lost before the donor."""
    membership, heard = crew.worker(FOREGROUND, 0, 3).membership, Heard()
    rounds = ElasticCommunicator(membership, heard, report_length=1)
    rounds.exchanges = 4
    exchange = 4 if outside else 5
    coming: list[tuple[Generation, Any]] = [
        (left(1, (0, 1), 2, exchange=exchange, donor=1), Cut()),
        (left(2, (0,), 1, exchange=4), None),
    ]

    def next_generation(**how: bool) -> Generation:
        new, circle = coming.pop(0)
        membership.enter(new)
        rounds.circle = circle or membership.circle("exchanges")
        return new

    rounds.next_generation = next_generation  # type: ignore[method-assign]
    rounds.begin(RoundPlace("a sum"))
    rounds.add(torch.ones(1))
    if outside:
        rounds._kept, rounds.pieces, rounds.at = rounds.pieces, [], None
        rounds.serve()
    else:
        rounds.land()
    assert rounds.circle is not None
    rounds.circle.drop()
    assert heard.changes == [(1, outside), (2, True)]


def test_sums_that_have_arrived_count_although_another_member_has_gone_on(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = (worker.rounds.circle for worker in crew.founders(FOREGROUND, 2))
    assert one is not None
    assert two is not None
    work = one.sum(sums := torch.ones(1))

    def lost() -> bool:  # called after a wait in vain; only now the other member takes part, and goes on
        two.wait(two.sum(torch.ones(1)))
        while not work.is_completed():
            time.sleep(0.001)
        return True

    with monkeypatch.context() as patch:
        patch.setattr(one, "_lost", lost)
        one.wait(work)
    assert sums.item() == 2.0


def test_a_time_out_does_not_name_a_worker_that_came_later_and_waits_too(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generations, "_GRACE_S", 0.0)
    one, two, _ = crew.founders(FOREGROUND, 3)
    board = one.membership.board
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(two.sum)
        while board.look("waits/0/0/1") is None and not waits.done():
            time.sleep(0.005)
        assert "worker 2 did not take part" in str(one.membership.missing("a sum", 0))
        assert [board.look(f"missed/{worker}") for worker in range(3)] == [None, None, "a sum"]
        for worker in (0, 2):
            board.remove_member(worker, "it was killed")
        assert waits.result(20.0) == 1.0


def test_a_network_that_is_away_for_a_second_ends_no_member(crew: Crew) -> None:
    one, two, _ = crew.founders(FOREGROUND, 3)
    two.membership._interface = "192.0.2.1"  # no address of this machine, so each attempt fails immediately
    crew.made[2].membership.board.remove_member(2, "it was killed")
    comes_back = threading.Timer(1.0, setattr, (two.membership, "_interface", one.membership._interface))
    comes_back.start()
    sums: list[float] = []
    together(lambda: sums.append(one.sum()), lambda: sums.append(two.sum()))
    comes_back.join()
    assert (sums, one.membership.members) == ([2.0, 2.0], (0, 1))


def test_a_worker_that_cannot_form_a_group_ends_with_the_reason_and_the_others_go_on(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elastic_communicator, "_MOST_FAILED", 5)
    one, two, _ = crew.founders(FOREGROUND, 3)
    two.membership._interface = "192.0.2.1"  # no address of this machine
    board = crew.made[2].membership.board
    board.remove_member(2, "it was killed")

    def ends() -> None:
        with pytest.raises(PeerError, match=r"worker 1 cannot form a group with the members \(0, 1\).*192\.0\.2\.1"):
            two.sum()
        board.remove_member(1, "it has ended")

    sums: list[float] = []
    together(lambda: sums.append(one.sum()), ends)
    assert (sums, one.membership.members) == ([1.0], (0,))


# -------------------------------------------------------------------- the thread
def test_of_a_loss_in_the_background_the_training_learns_between_two_steps(crew: Crew) -> None:
    one, two = crew.founders(BACKGROUND, 2)
    together(one.merge, two.merge)
    two.membership.board.remove_member(1, "it was killed")
    together(one.merge)
    assert (one.membership.members, one.loop.members, one.lost) == ((0,), [], [])
    assert one.records == []
    one.elastic.step_over()
    assert (one.loop.members, one.lost) == ([(0,)], [(1, 2)])
    assert [record.left for record in one.records] == [(1,)]


def test_a_worker_that_leaves_is_between_two_steps_and_the_others_go_on(crew: Crew) -> None:
    one, two = crew.founders(FOREGROUND, 2)
    two.elastic.leave()

    def leaves() -> None:
        while True:
            two.step()

    def goes_on() -> None:
        while one.membership.members != (0,):
            one.step()

    with pytest.raises(LeftRun):
        together(goes_on, leaves)
    assert (one.loop.members[-1], one.membership.generation.left) == ((0,), (1,))
    assert one.sum() == 1.0


def test_an_announcement_of_a_worker_that_is_lost_meanwhile_makes_no_other_leave(crew: Crew) -> None:
    """Announcements are by place, and the next member has its place now."""
    one, two, three = crew.founders(FOREGROUND, 3)
    one.elastic.leave()
    together(one.sum, two.sum, three.sum)
    two.membership.board.remove_member(0, "it was killed")
    together(*(partial(worker.sum, words=False) for worker in (two, three)))
    together(two.elastic.step_over, three.elastic.step_over)
    assert {worker.membership.members for worker in (two, three)} == {(1, 2)}


# -------------------------------------------------------------------- newcomers
def let_in(worker: Worker, sync: str, *newcomers: int) -> None:
    """Wait until all of these ask, and make rounds until they are in.

    It may take two: a member that looks for losses just before its sums arrive finds the statement of a member that
    has them. Then they repair this round, and newcomers join with the next one.
    """
    membership, board = worker.membership, worker.membership.board
    # Under a server the other founder may have let all in by now.
    while board.look("generation/1") is None and not (
        membership.somebody_asks and len(board.asking()) == len(newcomers)
    ):
        time.sleep(0.005)
    while not {*newcomers} <= {*membership.members} or (
        sync == SERVER and any(board.look(f"in/{one}") is None for one in newcomers)
    ):
        if sync == BACKGROUND:
            worker.merge()
        worker.step()
        time.sleep(0.005)


@pytest.mark.parametrize("sync", [FOREGROUND, BACKGROUND, SERVER])
def test_a_newcomer_begins_where_the_others_are(crew: Crew, sync: str) -> None:
    one, two = crew.founders(sync, 2)
    for worker in (one, two):
        worker.optimizer.zero_grad()
        worker.model(torch.ones(1, 2)).sum().backward()
        worker.optimizer.step()
    if sync == BACKGROUND:
        together(one.merge, two.merge)
    if sync == FOREGROUND:
        together(one.step, two.step)
    new = crew.worker(sync, 2, 2)

    together(*(partial(let_in, worker, sync, 2) for worker in (one, two)), new.elastic.enter)
    assert new.state() == one.state()
    assert new.elastic.members == (0, 1, 2)
    assert (one.loop.members[-1], two.loop.members[-1], new.loop.members) == ((0, 1, 2), (0, 1, 2), [])
    key = "state/1/2/1" if sync == SERVER else f"state/{one.membership.generation.number}/0"
    text, _ = json.loads(str(one.membership.board.look(key)))
    sent = ["run", "returned", "exchanges", "by", "generation", "donor", "model", "buffers", "others"]
    assert [name for name, _ in json.loads(text)["__map__"]] == sent
    if sync == SERVER:
        assert one.membership.board.look("wants/1/2") == "1"
        return
    if sync == BACKGROUND:
        together(one.merge, two.merge, new.merge)
        assert len({worker.elastic.claims._holding.update for worker in (one, two, new)}) == 1
        return
    assert one.elastic.returned.state() == new.elastic.returned.state()
    found: list[float] = []
    together(*(lambda worker=worker: found.append(worker.sum()) for worker in (one, two, new)))
    assert found == [3.0] * 3


@pytest.mark.parametrize("sync", [FOREGROUND, BACKGROUND, SERVER])
def test_the_last_worker_that_leaves_gives_its_state_to_one_that_asks(crew: Crew, sync: str) -> None:
    (one,) = crew.founders(sync, 1)
    new = crew.worker(sync, 2, 1)
    one.elastic.leave()

    def joins() -> None:
        new.meet()
        new.elastic.enter()
        while new.membership.members != (2,):
            if sync == BACKGROUND:
                new.merge()
            new.step()
            time.sleep(0.005)

    def leaves() -> None:
        while not one.membership.somebody_asks:
            time.sleep(0.005)
        while True:
            one.step()

    with pytest.raises(LeftRun):
        together(joins, leaves)
    assert new.loop.noted.state["of"] == 0


def test_one_that_asks_during_the_last_update_of_the_last_worker_gets_its_state(crew: Crew) -> None:
    (one,) = crew.founders(SERVER, 1)
    new = crew.worker(SERVER, 2, 1)
    asked = threading.Event()

    def settle() -> None:  # its last update is on its way
        asked.set()
        while not one.membership.board.asking():
            time.sleep(0.005)

    def joins() -> None:
        new.meet()
        asked.wait(20.0)
        new.elastic.enter()

    one.keeper.settle = settle  # type: ignore[method-assign]
    one.elastic.leave()
    with pytest.raises(LeftRun):
        together(joins, one.step)
    assert new.loop.noted.state["of"] == 0


@pytest.mark.parametrize("sync", [FOREGROUND, BACKGROUND, SERVER])
def test_newcomers_of_two_sites_get_their_states_from_two_workers_at_once(crew: Crew, sync: str) -> None:
    founders = crew.founders(sync, 2, "ab")
    news = [crew.worker(sync, 2, 2, "b"), crew.worker(sync, 3, 2, "a")]
    together(*(partial(let_in, one, sync, 2, 3) for one in founders), *(one.elastic.enter for one in news))
    assert [one.loop.noted.state["of"] for one in (*founders, *news)] == [0, 1, 1, 0]
    assert {one.membership.members for one in (*founders, *news)} == {(0, 1, 2, 3)}


@pytest.mark.parametrize("sync", [FOREGROUND, BACKGROUND])
def test_a_newcomer_joins_after_a_round_that_one_member_repairs_as_another_gives_it_up(crew: Crew, sync: str) -> None:
    one, two = crew.founders(sync, 2)
    new, circle = crew.worker(sync, 2, 2), two.rounds.circle
    assert circle is not None
    wait = circle.wait

    def looks_before_the_words_arrive(work: Any) -> None:
        wait(work)
        if isinstance(work, WordsMessage):
            while two.membership.board.look("said/0/0") is None:
                time.sleep(0.005)
            raise GroupAborted("a member is gone, or has given it up")

    circle.wait = looks_before_the_words_arrive  # type: ignore[method-assign]
    together(*(partial(let_in, worker, sync, 2) for worker in (one, two)), new.elastic.enter)
    assert [worker.membership.history[1] for worker in (one, two)] == [(0, 1)] * 2, "the repair"
    assert {worker.membership.members for worker in (one, two, new)} == {(0, 1, 2)}


@pytest.mark.parametrize("sync", [FOREGROUND, BACKGROUND, SERVER])
def test_a_newcomer_whose_model_changes_before_its_first_step_is_refused(crew: Crew, sync: str) -> None:
    new = crew.worker(sync, 2, 2)
    new.elastic._versions = [one._version for one in new.model.parameters()]
    part = Portion(iteration=0, epoch=0, start=0, size=1, shares=(1,), members=(0,))
    new.elastic.begins(part)
    new.elastic._versions = [one._version + 1 for one in new.model.parameters()]
    with pytest.raises(TrainingError, match="parameters changed since"):
        new.elastic.begins(part)


def test_a_newcomer_of_a_run_that_closes_is_late(crew: Crew) -> None:
    (one,) = crew.founders(SERVER, 1)
    new = crew.worker(SERVER, 2, 1)
    with ThreadPoolExecutor(1) as pool:
        joins = pool.submit(new.elastic.enter)
        while not one.membership.somebody_asks:
            time.sleep(0.005)
        one.membership.follow()
        one.membership.board.write("closing", "")
        with pytest.raises(PeerError, match="came too late"):
            joins.result(20.0)


@pytest.mark.parametrize("sync", [FOREGROUND, BACKGROUND, SERVER])
def test_a_newcomer_that_was_removed_before_it_joined_does_not_ask_again(crew: Crew, sync: str) -> None:
    (one,) = crew.founders(sync, 1)
    new = crew.worker(sync, 2, 1)
    one.membership.board.remove_member(2, "it sent no heartbeat for 10 s")
    with pytest.raises(PeerError, match=r"worker 2 was removed.*no heartbeat.*uneven run --join"):
        new.elastic.enter()


def test_a_newcomer_that_is_removed_before_it_has_the_state_of_the_run_does_not_wait_for_it(crew: Crew) -> None:
    (one,) = crew.founders(SERVER, 1)
    new = crew.worker(SERVER, 2, 1)
    with ThreadPoolExecutor(1) as pool:
        joins = pool.submit(new.elastic.enter)
        while not (one.membership.somebody_asks and one.membership.follow()):
            time.sleep(0.005)
        one.membership.board.remove_member(2, "it sent no heartbeat for 10 s")
        one.membership.follow()
        with pytest.raises(PeerError, match=r"worker 2 was removed.*no heartbeat"):
            joins.result(20.0)


def test_a_newcomer_whom_no_member_is_left_to_let_in_does_not_wait_for_ever(crew: Crew) -> None:
    """The members of the newest generation are gone, though not those of the first."""
    new = crew.worker(FOREGROUND, 4, 2)
    board = new.membership.board
    board.write("generation/1", left(1, (0, 4), 1).text())
    board.remove_member(0, "it was killed")
    with pytest.raises(PeerError, match="every member that could admit it is gone"):
        new.elastic.enter()


def test_a_generation_without_a_worker_that_has_the_state_of_the_run_is_the_end(crew: Crew) -> None:
    new = crew.worker(FOREGROUND, 4, 2)
    board = new.membership.board
    board.write("generation/1", Generation(number=1, members=(4,), left=(0, 1), came={"4": {}}, why={}).text())
    board.write("admitted/1", "1")
    with pytest.raises(PeerError, match="no worker is left that has the state"):
        new.elastic.enter()


def test_a_newcomer_that_has_the_state_by_now_gives_it_to_another(crew: Crew) -> None:
    """Its donor was lost after the last tensor, and the next generation was written before its mark was there."""
    new = crew.worker(SERVER, 4, 2)
    both = Generation(number=2, members=(4, 5), left=(0, 1), came={"4": {}, "5": {}}, why={})
    with pytest.raises(PeerError, match="no worker is left that has the state"):
        new.membership.donors(both)
    new.membership.board.write("in/4", "")
    assert new.membership.donors(both) == {5: 4}
