"""Quantities over time, and cost curves."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uneven.cluster.pure.describe.spec import Measured, Node, Saturating, Trace, steady
from uneven.errors import ConfigError
from uneven.policy.core.cost import Affine, Cost

STEPS_S = st.floats(min_value=1e-3, max_value=1e5)
SPEEDUPS = st.floats(min_value=1e-2, max_value=1e3)


def test_each_value_lasts_a_step_and_then_it_starts_again() -> None:
    trace = Trace(values=(1.0, 2.0, 3.0), step_s=10.0)
    assert [trace.at(time_s) for time_s in (0, 9.99, 10, 25, 30, 45)] == [1, 1, 2, 3, 1, 2]
    assert [trace.next_change_s(time_s) for time_s in (0, 9.99, 10, 29)] == [10, 10, 20, 30]


def test_a_speedup_shortens_the_steps() -> None:
    trace = Trace(values=(1.0, 2.0), step_s=300.0, speedup=60.0)
    assert trace.lasts_s == 5.0
    assert (trace.at(4.9), trace.at(5.0), trace.next_change_s(5.0)) == (1.0, 2.0, 10.0)


@pytest.mark.parametrize("trace", [steady(0.5), Trace(values=(0.5, 0.5), step_s=1.0), Trace(values=(0.5, 0.9))])
def test_what_never_changes_says_so(trace: Trace) -> None:
    assert trace.constant
    assert trace.at(1e9) == 0.5
    assert trace.next_change_s(3.0) == math.inf


@given(STEPS_S, SPEEDUPS, st.integers(0, 10_000))
def test_at_the_next_change_the_next_value_is_there(step_s: float, speedup: float, changes: int) -> None:
    trace = Trace(values=tuple(map(float, range(7))), step_s=step_s, speedup=speedup)
    time_s = changes * trace.lasts_s
    for _ in range(5):
        now, later_s = trace.at(time_s), trace.next_change_s(time_s)
        assert later_s > time_s
        assert trace.at(math.nextafter(later_s, 0.0)) == now
        assert trace.at(later_s) == (now + 1) % 7
        time_s = later_s


@pytest.mark.parametrize(
    ("values", "timing", "complaint"),
    [
        ((), {}, "no values"),
        ((1.0, -2.0), {}, "x.csv: value 1 is -2.0"),
        ((math.nan,), {}, "value 0 is nan"),
        ((math.inf,), {}, "value 0 is inf"),
        ((1.0,), {"step_s": 0.0}, r"step_s = 0\.0"),
        ((1.0,), {"step_s": 1e-3, "speedup": 1e6}, "each value lasts 1e-09 s, less than 1e-06 s"),
        ((1e19,), {}, r"value 0 is 1e\+19: it must be zero or more, and at most 1e\+18"),
        ((1.0,), {"speedup": -1.0}, r"speedup = -1\.0"),
        ((1.0,), {"speedup": math.inf}, "speedup = inf"),
    ],
)
def test_wrong_traces_are_refused(values: tuple[float, ...], timing: dict[str, float], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        Trace(values=values, source="x.csv", **timing)


@pytest.mark.parametrize(
    ("cores", "share", "load", "available"),
    [
        (1.0, 1.0, 0.0, 1.0),
        (0.6, 1.0, 0.0, 1.0),  # of its 0.6 cores
        (1.0, 0.25, 0.0, 0.25),
        (1.0, 1.0, 1.0, 1 / 2),
        (0.6, 0.5, 3.0, 0.5 / 4),
        (4.0, 1.0, 1.0, 4 / 5),  # four threads and a rival share four cores
        (8.0, 1.0, 8.0, 1 / 2),
        (1.5, 1.0, 1.0, 2 / 3),  # two threads
    ],
)
def test_what_a_worker_gets_of_its_node(cores: float, share: float, load: float, available: float) -> None:
    node = Node(name="a", cores=cores, share=steady(share), load=steady(load))
    assert node.available(5.0) == pytest.approx(available, rel=1e-12)


def test_a_node_changes_when_its_share_or_its_load_does() -> None:
    node = Node(
        name="a",
        share=Trace(values=(1.0, 0.5), step_s=10.0),
        load=Trace(values=(0.0, 1.0), step_s=7.0),
    )
    times_s = [0.0]
    while len(times_s) < 5:
        times_s.append(node.next_change_s(times_s[-1]))
    assert times_s == [0, 7, 10, 14, 20]
    assert [node.available(time_s) for time_s in times_s] == [1, 0.5, 0.25, 0.5, 1]
    assert Node(name="b").next_change_s(0.0) == math.inf


@given(st.floats(0, 64), st.floats(0, 64), st.floats(0, 1), st.floats(0.05, 64))
def test_more_load_never_gives_more(less: float, more: float, share: float, cores: float) -> None:
    less, more = sorted((less, more))
    share = max(share, 1e-6)
    nodes = [Node(name="a", cores=cores, share=steady(share), load=steady(load)) for load in (less, more)]
    assert 0 <= nodes[1].available(0) <= nodes[0].available(0) <= share


def test_a_saturating_cost_is_flat_up_to_saturation() -> None:
    cost = Saturating(0.010, 0.005, 0.0005)
    assert [cost.seconds(x) for x in (0, 1, 10)] == [0.010] * 3
    assert cost.seconds(20) == pytest.approx(0.015)


def test_a_measured_cost_goes_through_its_points() -> None:
    cost = Measured((2, 10, 20), (0.1, 0.2, 0.4))
    assert [cost.seconds(x) for x in (0, 2, 10, 20)] == [0.1, 0.1, 0.2, 0.4]
    assert cost.seconds(6) == pytest.approx(0.15)
    assert cost.seconds(30) == pytest.approx(0.6)  # on from the last two


@st.composite
def costs(draw: st.DrawFn) -> Cost:
    seconds = st.floats(1e-6, 10.0)
    kind = draw(st.sampled_from(["affine", "saturating", "measured"]))
    if kind == "affine":
        return Affine(draw(seconds), draw(seconds))
    if kind == "saturating":
        return Saturating(draw(seconds), draw(seconds), draw(seconds))
    samples = sorted(draw(st.sets(st.integers(0, 1000), min_size=2, max_size=6)))
    return Measured(
        tuple(samples), tuple(sorted(draw(st.lists(seconds, min_size=len(samples), max_size=len(samples)))))
    )


@given(costs(), st.integers(0, 3000), st.integers(0, 3000))
def test_no_cost_falls(cost: Cost, left: int, right: int) -> None:
    assert 0 < cost.seconds(min(left, right)) <= cost.seconds(max(left, right)) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("samples", "seconds", "complaint"),
    [
        ((1,), (0.1,), "at least two points"),
        ((1, 2), (0.1,), "2 batch sizes and 1 times"),
        ((2, 1), (0.1, 0.2), "must ascend"),
        ((1, 1), (0.1, 0.2), "must ascend"),
        ((-1, 1), (0.1, 0.2), "must ascend"),
        ((1, 32), (0.2, 0.1), r"falls from 0\.2 s for 1 samples to 0\.1 s for 32"),
        ((1, 2), (0.0, 0.1), r"of 1 samples: time_s = 0\.0: it must be positive"),
    ],
)
def test_points_that_make_no_cost_are_refused(
    samples: tuple[int, ...], seconds: tuple[float, ...], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        Measured(samples, seconds)


def test_costs_that_fall_or_take_no_time_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"saturating cost: per_sample_s = -0\.1"):
        Saturating(0.1, 0.1, -0.1)
    with pytest.raises(ConfigError, match=r"affine cost: per_sample_s = -0\.1"):
        Node(name="a", cost=Affine(1.0, -0.1))
    with pytest.raises(ConfigError, match="takes no time"):
        Node(name="a", cost=Affine(0.0, 0.0))
