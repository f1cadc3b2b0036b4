"""When work ends on a node that is not always fully there."""

from __future__ import annotations

import math
from statistics import fmean, stdev
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_world import Ran, cluster, node

from uneven.cluster.events import Do, Event
from uneven.cluster.spec import Node, Trace, steady
from uneven.simulate.compute import Jitter, Processor


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


def test_who_waited_has_a_head_start_under_a_quota() -> None:
    """By going through the periods: some 40 ms of work at a quarter core, begun anywhere in a period of 10 ms.

    A millisecond of processor time was kept from before.
    """
    node = Node(name="n", cores=0.25, period_s=0.01)
    told_s, found_s = [], []
    for core_s in (0.04 + part / 50 * 0.0025 for part in range(50)):
        told_s.append(Processor(node).after_rest(0.0, math.inf, core_s / 0.25))
        found_s += [_dealt_out(core_s, 0.25, 0.01, phase / 100 * 0.01) for phase in range(100)]
    assert fmean(told_s) == pytest.approx(fmean(found_s), rel=0.002)


def _dealt_out(core_s: float, quota: float, period_s: float, phase_s: float) -> float:
    """How long it takes if each period's part can be used at once, and the present one is untouched."""
    time_s, left_s, until_s, kept_s = phase_s, core_s, 0.0, 0.001
    while True:
        until_s += period_s
        here_s = min(quota * period_s + kept_s, left_s, until_s - time_s)
        kept_s = max(0.0, kept_s - max(0.0, here_s - quota * period_s))
        left_s -= here_s
        if left_s <= 1e-12:
            return time_s + here_s - phase_s
        time_s = until_s


@pytest.mark.parametrize(
    ("node", "idle_s", "left_s"),
    [
        (Node(name="evenly", cores=0.25), 1.0, 0.16),
        (Node(name="whole-cores", cores=2.0, period_s=0.01), 1.0, 0.16),
        (Node(name="rivals", cores=0.25, period_s=0.01, load=steady(1.0)), 1.0, 0.16),
        (Node(name="did-not-wait", cores=0.25, period_s=0.01), 0.0, 0.16),
        (Node(name="waited-for-a-moment", cores=0.25, period_s=0.01), 0.004, 0.156),
    ],
)
def test_no_more_head_start_than_was_saved(node: Node, idle_s: float, left_s: float) -> None:
    assert Processor(node).after_rest(0.0, idle_s, 0.16) == pytest.approx(left_s)


def test_a_head_start_makes_nobody_faster_than_its_thread() -> None:
    node = Node(name="n", cores=0.25, period_s=0.01)
    assert Processor(node).after_rest(0.0, 1.0, 0.004) == pytest.approx(0.001)


@pytest.mark.parametrize(
    ("rest", "lost_s"),
    [
        ({"cores": 0.25}, 0.0),
        ({"cores": 1.0, "period_s": 0.01}, 0.0),
        ({"cores": 0.25, "period_s": 0.01}, 0.01),
        ({"cores": 0.5, "period_s": 0.01, "load": steady(1.0)}, 0.01 * (1 + 6 * 0.25)),
    ],
)
def test_an_exchange_goes_from_thread_to_thread_under_a_quota(rest: dict[str, Any], lost_s: float) -> None:
    assert Processor(Node(name="n", **rest)).hand_over_s(0.0, messages=6) == pytest.approx(lost_s)


def test_a_wait_before_the_exchange_gives_it_a_head_start_too() -> None:
    last, waits = node("last", step_s=2.0, cores=0.5, period_s=0.01), node("waits", cores=0.25, period_s=0.01)
    first = Ran(cluster(last, waits, exchange_core_s=0.02), iterations=1)
    # 20 ms of processor time take 80 ms, and a period is lost; but who waited is 7.5 ms ahead, and another 4 by the
    # kept millisecond.
    assert first.ends_s(0) == [pytest.approx(2.0 + 0.08 + 0.01 - 0.0115)]
