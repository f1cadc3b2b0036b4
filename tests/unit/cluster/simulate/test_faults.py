"""Workers that die, leave and join in the middle of a run."""

from __future__ import annotations

import pytest
from small_world import MEGABIT_PER_S, Ran, cluster, node
from test_exchanges import Heard

from uneven.cluster.pure.describe.cluster_events import Do, Event
from uneven.cluster.pure.describe.spec import Trace, steady
from uneven.errors import ConfigError, TrainingError
from uneven.journal.pure.metrics import Join, goodput
from uneven.policy.core.records import MembershipRecord
from uneven.policy.sync import policies

THREE = tuple(node(f"n{rank}") for rank in range(3))


def members(run: Ran, iteration: int) -> list[int]:
    return sorted(step.rank for step in run.steps if step.iteration == iteration)


def test_an_exchange_goes_on_without_the_dead_and_the_next_is_among_the_rest() -> None:
    heard = Heard()
    nodes = [node("a"), node("b"), node("c", 3.0)]
    death = Event(do=Do.KILL, node="c", at_s=4.0)
    run = Ran(cluster(*nodes, events=(death,)), iterations=4, arithmetic=heard)
    assert run.ends_s(0) == run.ends_s(1) == [3.0, 4.0, 5.0, 6.0]
    assert run.ends_s(2) == [3.0]
    assert [call[1] for call in heard.only("merges")] == [(0, 1, 2), (0, 1), (0, 1), (0, 1)]
    assert [step.global_batch for step in run.of(0)] == [12, 8, 12, 12]  # what the dead one had is lost once
    assert heard.only("leaves") == [("leaves", 2)]
    assert run.outcome.workers[2].clock == 1


@pytest.mark.parametrize("policy", ["bsp", "ssp:staleness=1", "local:every=2", "backup:spares=1", "asp", "shadow:ma"])
def test_everybody_else_takes_all_steps_when_one_dies(policy: str) -> None:
    for at_s in (0.0, 0.5, 1.0, 2.5, 3.0):
        death = Event(do=Do.KILL, node="n1", at_s=at_s)
        run = Ran(cluster(*THREE, node("slow", 2.0), events=(death,)), policy, iterations=6)
        assert [run.outcome.workers[-1].clock, run.ends_s(0)[-1] >= 6.0] == [6, True]
        assert not [step for step in run.of(1) if step.ended_at_s > at_s]


def test_a_transfer_under_way_starts_again_without_the_dead() -> None:
    limit = {key: steady(8 * MEGABIT_PER_S) for key in ("up_bit_per_s", "down_bit_per_s")}
    nodes = [node(f"n{rank}", **limit) for rank in range(3)]
    death = Event(do=Do.KILL, node="n2", at_s=2.0)
    run = Ran(cluster(*nodes, events=(death,)), "local:every=1", iterations=1)
    assert run.ends_s(0) == [pytest.approx(3.0)]  # at 1 s among three, at 2 s among two: a second


def test_a_stopped_worker_stands_still_and_then_goes_on() -> None:
    stop = Event(do=Do.STOP, node="n1", at_s=1.5, for_s=2.0)
    run = Ran(cluster(*THREE, events=(stop,)), iterations=4)
    assert run.ends_s(0) == run.ends_s(1) == [1.0, 4.0, 5.0, 6.0]  # half a step, two seconds, the other half
    assert [event.message for event in run.events("stop")] == ["n1 pauses for 2 s", "n1 continues"]


def test_who_is_stopped_between_two_steps_begins_the_next_one_late() -> None:
    stop = Event(do=Do.STOP, node="n1", at_s=1.5, for_s=2.0)
    run = Ran(cluster(node("n0", 3.0), node("n1"), events=(stop,), exchange_core_s=0.5), iterations=2)
    assert run.ends_s(1) == [pytest.approx(4.0), pytest.approx(7.5)]  # its own side of the exchange from 3.5 s on


def test_a_stop_and_a_slow_down_at_once() -> None:
    events = (Event(do=Do.STOP, node="n1", at_s=0.5, for_s=2.0),
              Event(do=Do.SLOW, node="n1", at_s=1.0, factor=0.5))  # fmt: skip
    run = Ran(cluster(*THREE, events=events), iterations=1)
    assert run.ends_s(1) == [3.5]  # half a step by 0.5 s, nothing until 2.5 s, the rest at half speed


def test_who_leaves_ends_its_step_first() -> None:
    heard = Heard()
    leaving = Event(do=Do.LEAVE, node="n1", at_s=1.5)
    run = Ran(cluster(*THREE, events=(leaving,)), iterations=4, arithmetic=heard)
    assert [members(run, iteration) for iteration in range(4)] == [[0, 1, 2], [0, 1, 2], [0, 2], [0, 2]]
    assert {step.global_batch for step in run.steps} == {12}
    assert [step.batch for step in run.of(0)] == [4, 4, 6, 6]
    assert [call[1] for call in heard.only("merges")][-1] == (0, 2)


def test_leaving_when_an_iteration_starts_is_leaving_before_it() -> None:
    for do in (Do.LEAVE, Do.KILL):
        run = Ran(cluster(*THREE, events=(Event(do=do, node="n0", at_iteration=2),)), iterations=4)
        assert [members(run, iteration) for iteration in range(4)] == [[0, 1, 2], [0, 1, 2], [1, 2], [1, 2]]


def test_a_newcomer_gets_the_parameters_and_takes_part_from_the_next_step() -> None:
    heard = Heard()
    late = node("late", up_bit_per_s=steady(1e9), down_bit_per_s=steady(16 * MEGABIT_PER_S))
    joining = Event(do=Do.JOIN, node="late", at_s=1.25)
    run = Ran(cluster(*THREE, late, events=(joining,)), "asp", iterations=4, arithmetic=heard)
    first = next(call for call in heard.calls if call[:2] == ("computes", 3))
    assert first[2:] == (2, range(2 * 16 + 12, 2 * 16 + 16), 2.0)  # half a second for its copy, then the next step
    assert ("enters", 3, 0) in heard.calls
    assert {step.batch for step in run.of(0)} == {6, 4}  # 16 among three, then among four
    assert run.events("join")[0].message == "late joins at iteration 2"


def test_a_newcomer_whose_copy_is_long_under_way_is_waited_for_under_bsp() -> None:
    late = node("late", down_bit_per_s=steady(1 * MEGABIT_PER_S))
    joining = Event(do=Do.JOIN, node="late", at_s=0.5)
    run = Ran(cluster(*THREE, late, events=(joining,)), iterations=3)
    assert run.ends_s(0)[:2] == [1.0, pytest.approx(8.5 + 1.0 + 12.0)]  # its copy, its step, the ring over its link
    assert [members(run, iteration) for iteration in range(3)] == [[0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3]]


def test_who_died_may_come_back() -> None:
    events = (Event(do=Do.KILL, node="n2", at_s=1.5), Event(do=Do.JOIN, node="n2", at_s=3.5))
    run = Ran(cluster(*THREE, events=events), iterations=6)
    assert [len(members(run, iteration)) for iteration in range(6)] == [3, 2, 2, 2, 3, 3]
    assert run.ends_s(0) == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


def test_who_goes_before_it_could_take_part_leaves_no_trace() -> None:
    late = node("late", down_bit_per_s=steady(1 * MEGABIT_PER_S))
    events = (Event(do=Do.JOIN, node="late", at_s=0.25), Event(do=Do.KILL, node="late", at_s=0.5))
    run = Ran(cluster(*THREE, late, events=events), iterations=3)
    assert run.ends_s(0) == [1.0, 2.0, 3.0]
    assert not run.of(3)


def test_when_nobody_is_left_a_newcomer_goes_on_alone() -> None:
    events = (Event(do=Do.KILL, node="n0", at_s=1.5), Event(do=Do.JOIN, node="n1", at_s=4.0))
    run = Ran(cluster(node("n0"), node("n1"), events=events), iterations=4)
    assert run.ends_s(0) == [1.0]
    assert [step.iteration for step in run.of(1)] == [2, 3]
    assert run.ends_s(1) == [5.0, 6.0]
    assert {step.batch for step in run.of(1)} == {8}


def test_one_of_two_that_have_left_goes_on_alone() -> None:
    events = (
        *(Event(do=Do.LEAVE, node=name, at_s=1.2) for name in ("n0", "n1")),
        Event(do=Do.JOIN, node="n0", at_s=9.5),
    )
    run = Ran(cluster(node("n0"), node("n1"), events=events), iterations=5)
    assert run.of(0)[-1].iteration == 4


@pytest.mark.parametrize("at_s", [2.05, 4.05, 6.05])
def test_nobody_waits_for_an_exchange_in_flight_of_one_that_died(at_s: float) -> None:
    limit = {key: steady(MEGABIT_PER_S) for key in ("up_bit_per_s", "down_bit_per_s")}
    nodes = [node(f"n{rank}", **limit) for rank in range(3)]
    death = Event(do=Do.KILL, node="n2", at_s=at_s)
    run = Ran(cluster(*nodes, events=(death,)), "diloco:every=4,fragments=2,delay=1", iterations=12)
    assert run.of(0)[-1].iteration == run.of(1)[-1].iteration == 11


def test_a_join_after_the_end_changes_nothing() -> None:
    joining = Event(do=Do.JOIN, node="n2", at_s=100.0)
    run = Ran(cluster(*THREE, events=(joining,)), iterations=2)
    assert run.outcome.ended_at_s == 2.0
    assert not run.of(2)
    assert not run.events("join")


@pytest.mark.parametrize("spec", [*sorted(set(policies)), "shuffle:groups=random,size=2:ma:every=1"])
def test_members_that_come_and_go_by_turns_hold_up_nobody(spec: str) -> None:
    events = tuple(
        Event(do=do, node=name, at_s=at_s)
        for name, do, at_s in (
            ("n1", Do.KILL, 1.7), ("n3", Do.JOIN, 2.0), ("n2", Do.LEAVE, 3.3), ("n1", Do.JOIN, 5.5),
            ("n0", Do.KILL, 7.1), ("n2", Do.JOIN, 7.2), ("n3", Do.LEAVE, 9.9),
        )
    )  # fmt: skip
    nodes = [node(f"n{rank}", 0.7 + 0.2 * rank, site="east" if rank % 2 else "west") for rank in range(5)]
    run = Ran(cluster(*nodes, events=events), spec, iterations=16)
    assert run.outcome.workers[4].clock == 16
    for step in run.steps:
        assert step.exchange_s >= 0.0
        assert step.batch <= step.global_batch


def test_who_comes_back_before_it_has_gone_meets_those_who_went_on() -> None:
    slow = node("n2", step_s=8.0)
    events = (Event(do=Do.LEAVE, node="n2", at_s=0.5), Event(do=Do.JOIN, node="n2", at_s=1.0))
    run = Ran(cluster(node("n0"), node("n1"), slow, events=events), iterations=3)
    assert [step.iteration for step in run.of(0)] == [0, 1, 2]
    assert run.outcome.ended_at_s >= 8.0


@pytest.mark.parametrize("policy", ["bsp", "ssp:staleness=1", "local:every=1"])
def test_one_that_comes_back_within_its_last_step_is_a_member_again(policy: str) -> None:
    events = (Event(do=Do.LEAVE, node="n1", at_s=4.2), Event(do=Do.JOIN, node="n1", at_s=4.5))
    run = Ran(cluster(node("n0"), node("n1", 2.0), events=events), policy, iterations=9)
    assert {run.of(rank)[-1].iteration for rank in (0, 1)} == {8}


def test_times_that_are_off_by_their_unit_end_in_words() -> None:
    with pytest.raises(TrainingError, match=r"after 1e\+09 s of virtual time 1 of 3 iterations have finished"):
        Ran(cluster(node("n0", step_s=9e8), node("n1")), iterations=3)
    moving = node("n0", step_s=1e6, share=Trace(values=(1.0, 0.5), step_s=1e-3))
    with pytest.raises(ConfigError, match=r"node 'n0': its share or load changes more than 100,000 times while it"):
        Ran(cluster(moving), iterations=1)
    for key, value in (("iterations", 10**10), ("seed", 2**64), ("lookahead", 10**7)):
        with pytest.raises(ConfigError, match=f"{key} = .*at most"):
            Ran(cluster(moving), **{"iterations": 1, key: value})


def test_members_stand_still_until_they_have_met_where_they_average_gradients() -> None:
    death = Event(do=Do.KILL, node="n1", at_s=1.5)
    run = Ran(cluster(*THREE, events=(death,)), iterations=4, pause_s=0.5)
    assert run.ends_s(0) == run.ends_s(2) == [1.0, 2.0, 3.5, 4.5]
    alone = Ran(cluster(*THREE, events=(death,)), "asp", iterations=4, pause_s=0.5)
    assert alone.ends_s(0) == [1.0, 2.0, 3.0, 4.0]
    with pytest.raises(ConfigError, match="pause_s"):
        Ran(cluster(*THREE), pause_s=-1.0)


def test_changes_are_written_down_as_of_a_real_run_and_the_capacity_is_of_who_was_there() -> None:
    events = (Event(do=Do.KILL, node="n2", at_s=1.5), Event(do=Do.LEAVE, node="n0", at_s=4.0))
    events += (Event(do=Do.JOIN, node="n2", at_s=3.0),)
    run = Ran(cluster(*THREE, events=(events[0], *events[:0:-1])), iterations=6, pause_s=0.25)
    told = [record for record in run.records if isinstance(record, MembershipRecord)]
    assert [(one.generation, one.members, one.came, one.left, one.pause_s) for one in told] == [
        (1, (0, 1), (), (2,), 0.25), (2, (0, 1, 2), (2,), (), 0.25), (3, (1, 2), (), (0,), 0.25),
    ]  # fmt: skip
    assert [one.why for one in told] == [
        "worker 2 is gone: it was killed", "worker 2 has joined", "worker 0 is gone: it got a request to leave",
    ]  # fmt: skip
    join = Join()
    for record in run.records:
        join.add(record)
    taken = join.take(final=True)
    computed = {rank: [(s.batch, s.compute_s) for s in run.of(rank)] for rank in range(3)}
    speed = {rank: sum(b for b, _ in its) / sum(s for _, s in its) for rank, its in computed.items()}
    end_s = taken[-1].ended_at_s
    could = speed[0] * told[2].at_s + speed[1] * end_s + speed[2] * (1.5 + end_s - told[1].at_s)
    assert goodput(taken, join.changes) == pytest.approx(sum(one.global_batch for one in taken) / could)
