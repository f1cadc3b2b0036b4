"""When work ends on a node that is not always fully there."""

from __future__ import annotations

import math
from statistics import fmean, stdev
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_world import Ran, cluster, node

from uneven.cluster.pure.describe.cluster_events import Do, Event
from uneven.cluster.pure.describe.spec import Node, Trace, steady
from uneven.cluster.pure.simulate.compute import Jitter, Processor
from uneven.errors import ConfigError


def test_half_a_node_takes_twice_as_long() -> None:
    assert Processor(Node(name="a", share=steady(0.5))).end_s(3.0, 2.0) == 7.0


def test_a_rival_takes_half_a_core() -> None:
    assert Processor(Node(name="a", load=steady(1.0))).end_s(0.0, 2.0) == 4.0


def test_a_share_that_changes_in_the_middle() -> None:
    changing = Processor(Node(name="a", share=Trace(values=(1.0, 0.25), step_s=2.0)))
    assert changing.end_s(0.0, 2.0) == 2.0
    assert changing.end_s(0.0, 2.25) == 3.0  # a quarter of the speed from 2 s to 4 s
    assert changing.end_s(1.0, 2.0) == 4.5  # 1 s, then 0.5 s of work in 2 s, then the rest at full speed
    assert changing.work_s(1.0, 4.5) == pytest.approx(2.0)


def test_a_node_that_is_not_there_for_a_while_goes_on_afterwards() -> None:
    away = Processor(Node(name="a", share=Trace(values=(1.0, 0.0, 0.0), step_s=1.0)))
    assert away.end_s(0.5, 1.0) == 3.5


def test_no_work_takes_no_time_and_without_speed_it_never_ends() -> None:
    gone = Processor(Node(name="a"))
    gone.slow(0.0)
    assert gone.end_s(1.0, 0.0) == 1.0
    assert gone.end_s(1.0, 1.0) == math.inf


def test_slow_downs_multiply_and_end() -> None:
    processor = Processor(Node(name="a"))
    processor.slow(0.5)
    processor.slow(0.5)
    assert processor.end_s(0.0, 1.0) == 4.0
    processor.recover(0.5)
    assert processor.end_s(0.0, 1.0) == 2.0


@given(
    values=st.lists(st.floats(0.01, 1.0), min_size=1, max_size=6),
    start_s=st.floats(0.0, 50.0),
    work_s=st.floats(0.0, 20.0),
)
def test_the_end_is_where_the_work_is_done(values: list[float], start_s: float, work_s: float) -> None:
    processor = Processor(Node(name="a", share=Trace(values=tuple(values), step_s=0.7)))
    assert processor.work_s(start_s, processor.end_s(start_s, work_s)) == pytest.approx(work_s, abs=1e-9)


def test_jitter_has_the_mean_and_the_spread_that_it_should_and_is_given_by_its_seed() -> None:
    factors = [Jitter(0.2, 7, 3).factor(iteration) for iteration in range(600)]
    assert factors == [Jitter(0.2, 7, 3).factor(iteration) for iteration in range(600)]
    assert fmean(factors) == pytest.approx(1.0, abs=0.03)
    assert stdev(factors) == pytest.approx(0.2, abs=0.03)
    assert factors[0] != Jitter(0.2, 8, 3).factor(0) != Jitter(0.2, 8, 2).factor(0)
    assert Jitter(0.0, 7, 3).factor(0) == 1.0


def test_a_slow_down_in_the_middle_of_a_step_holds_for_the_rest_of_it() -> None:
    slow = Event(do=Do.SLOW, node="a", at_s=0.5, factor=0.25, for_s=1.0)
    run = Ran(cluster(node("a"), node("b"), events=(slow,)), iterations=2)
    assert run.ends_s(0) == [1.75, 2.75]  # 0.5 s, then 0.25 s of work in a second, then the rest
    assert run.of(0)[0].compute_s == 1.75
    assert run.of(1)[0].exchange_s == 0.75
    assert [event.at_s for event in run.events("slow")] == [0.5, 1.5]


def test_a_slow_down_without_an_end_at_an_iteration() -> None:
    slow = Event(do=Do.SLOW, node="b", at_iteration=1, factor=0.5)
    assert Ran(cluster(node("a"), node("b"), events=(slow,))).ends_s(0) == [1.0, 3.0, 5.0]


def test_a_slow_down_while_another_policy_computes() -> None:
    slow = Event(do=Do.SLOW, node="a", at_s=0.5, factor=0.5)
    run = Ran(cluster(node("a"), node("b"), events=(slow,)), "asp", iterations=2)
    assert run.ends_s(0) == [1.5, 3.5]
    assert run.ends_s(1) == [1.0, 2.0]


@pytest.mark.parametrize("cores", [0.25, 0.7, 1.5])
def test_with_a_quota_the_end_is_where_the_work_is_done(cores: float) -> None:
    processor = Processor(Node(name="a", cores=cores, period_s=0.01, share=Trace(values=(1.0, 0.4), step_s=0.3)), 7)
    end_s = processor.end_s(0.05, 0.4)
    assert end_s == processor.end_s(0.05, 0.4)  # to ask changes nothing
    assert processor.work_s(0.05, end_s) == pytest.approx(0.4)
    processor.spend(0.05, 0.4)
    assert processor.end_s(end_s, 0.1) > end_s + 0.09  # what it has had is gone


def test_who_waited_has_a_head_start_under_a_quota() -> None:
    processor = Processor(Node(name="a", cores=0.25, period_s=0.01), 3)
    busy_s = processor.end_s(0.0, 0.1)
    processor.spend(0.0, 0.1)
    assert processor.end_s(busy_s, 0.01) > busy_s + 0.005
    assert processor.end_s(busy_s + 1.0, 0.01) == pytest.approx(busy_s + 1.0 + 0.0025)  # as fast as its thread


def test_who_waited_beside_a_rival_has_none() -> None:
    alone, beside = (
        Processor(Node(name="a", cores=0.25, period_s=0.01, load=steady(rivals)), 3) for rivals in (0.0, 1.0)
    )
    assert alone.end_s(1.0, 0.004) == pytest.approx(1.001)  # a millisecond, at the speed of its thread
    assert beside.end_s(1.0, 0.004) > 1.001


@pytest.mark.parametrize(("waited", "periods"), [(False, 1), (True, 6)])
def test_who_waits_for_each_message_beside_a_rival_gets_a_part_of_a_period_for_each(waited: bool, periods: int) -> None:
    processor = Processor(Node(name="a", cores=0.4, period_s=0.01, load=steady(1.0)), 3)
    end_s = began_s = processor.answer_s(1.0, 0.0002)
    for _ in range(6):
        end_s = processor.answer_s(end_s, 0.0002, waited=waited)
    assert end_s - began_s == pytest.approx(0.01 * periods, abs=0.0101)


def test_without_a_quota_a_message_is_answered_as_fast_as_the_node_is() -> None:
    assert Processor(Node(name="a", cores=0.25)).answer_s(1.0, 0.1) == 1.1
    assert Processor(Node(name="a", cores=1.5, period_s=0.01)).dealt_out is False


def test_a_slow_down_under_a_quota_is_one_of_the_quota() -> None:
    node_of = {"cores": 0.5, "period_s": 0.01}
    slow = Event(do=Do.SLOW, node="a", at_s=0.5, factor=0.25)
    run = Ran(cluster(node("a", **node_of), node("b", **node_of), events=(slow,)), iterations=1)
    assert run.of(0)[0].compute_s == pytest.approx(0.5 + 0.5 / 0.25, abs=0.05)
    assert run.of(1)[0].compute_s == pytest.approx(1.0, abs=0.02)


def test_under_a_quota_each_goes_on_when_its_own_part_of_an_exchange_is_over() -> None:
    def ends_s(**rest: Any) -> list[float]:
        nodes = (node(name, cores=0.3, **rest) for name in "abc")
        run = Ran(cluster(*nodes, exchange_core_s=0.004), iterations=1)
        return [run.ends_s(rank)[0] for rank in range(3)]

    assert ends_s() == [pytest.approx(1.0 + 0.004 / 0.3)] * 3
    under_quota = ends_s(period_s=0.01)
    assert len(set(under_quota)) == 3
    assert max(under_quota) - min(under_quota) < 0.03
    assert max(under_quota) > 1.0


@pytest.mark.parametrize("at_s", [0.05, 0.06, 0.17])
@pytest.mark.parametrize("do", [Do.KILL, Do.LEAVE])
def test_who_goes_in_the_midst_of_a_ring_under_a_quota_holds_nobody_up(at_s: float, do: Do) -> None:
    nodes = (node(name, step_s=0.05, cores=0.3, period_s=0.01) for name in "abc")
    gone = (Event(do=do, node="b", at_s=at_s), Event(do=do, node="c", at_s=at_s + 0.001))
    assert len(Ran(cluster(*nodes, exchange_core_s=0.004, events=gone), iterations=5).of(0)) == 5


def test_a_node_whose_quota_is_far_too_small_is_named() -> None:
    with pytest.raises(ConfigError, match="node 'tiny': a piece of work"):
        Processor(Node(name="tiny", cores=1e-6, period_s=0.001), 1).end_s(0.0, 1e6)
