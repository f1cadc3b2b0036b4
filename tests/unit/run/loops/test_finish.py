"""Iterations that are finished together: the rule, and what it gains where load flickers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from uneven.errors import ConfigError
from uneven.policy.balance import balancers
from uneven.policy.samples.finish_together import FinishTogether, LaunchFit
from uneven_bench.rivals.cases import cases
from uneven_bench.rivals.loops import oracle, ours
from uneven_bench.rivals.together import flicker, together


def played(rule: FinishTogether, now: list[float], rng: np.random.Generator, shares: list[int]) -> list[int]:
    """Samples that each does, where anybody may be the next to ask, until all have left the rest to others."""
    done = [*rule.first_parts(shares)]
    assert all(0 < first <= share for first, share in zip(done, shares, strict=True))
    first_s = [0.01 + count / speed for count, speed in zip(done, now, strict=True)]
    asking, left, here = [*range(len(now))], sum(shares) - sum(done), dict[int, float]()
    while asking:
        worker = int(rng.choice(asking))
        here[worker] = now[worker]
        chunk = rule.chunk(worker, done[worker], left, here)
        assert 0 <= chunk <= left
        done[worker] += chunk
        left -= chunk
        if not chunk:
            asking.remove(worker)
            here[worker] = 0.0
    rule.ended(done, [0.01 + count / speed for count, speed in zip(done, now, strict=True)], first_s)
    return done


@settings(max_examples=50)
@given(
    speeds=st.lists(st.floats(1.0, 500.0), min_size=1, max_size=6), each=st.integers(2, 90),
    launch_s=st.floats(0.0, 0.2), seed=st.integers(0, 99),
)  # fmt: skip
def test_every_sample_of_every_iteration_is_taken_once(
    speeds: list[float], each: int, launch_s: float, seed: int
) -> None:
    rule, rng = FinishTogether(len(speeds), each * len(speeds), 2), np.random.default_rng(seed)
    rule.launch_s = [launch_s] * len(speeds)
    for _ in range(12):
        now = [speed * math.exp(rng.normal(0.0, 0.5)) for speed in speeds]
        assert sum(played(rule, now, rng, [each] * len(speeds))) == each * len(speeds)


def test_the_rest_grows_with_the_error_and_is_nothing_where_speeds_stay() -> None:
    rule = FinishTogether(2, 200)
    rule.launch_s = [0.01, 0.01]
    for _ in range(40):
        firsts = rule.first_parts([120, 80])
        rule.ended([100, 100], [1.0, 1.0], [one / 100 for one in firsts])
    assert rule.rest == 0.0
    assert rule.first_parts([120, 80]) == (120, 80)
    for number in range(80):
        firsts = rule.first_parts([100, 100])
        speed = 100.0 * 3.0 ** (number % 2)  # of the first one, which flickers
        took_s = [firsts[0] / speed, firsts[1] / 100.0]
        rule.ended(firsts, took_s, took_s)
    assert rule.error == pytest.approx(math.log(3.0) / 2, rel=1e-3)
    assert rule.rest == pytest.approx(1.0 - math.exp(-rule.error / 2))


def test_chunks_shrink_with_what_is_left_and_the_slow_leave_the_last_to_the_fast() -> None:
    rule = FinishTogether(2, 400, 2)
    rule.first_parts([200, 200])
    rule.ended([300, 100], [1.0, 1.0], [1.0, 1.0])
    rule.error = 0.3
    rule.launch_s = [0.0, 0.2]
    assert rule.first_parts([200, 200]) == (142, 86)  # 258 and 86 are planned; the first one begins with a part of it
    rule.launch_s = [0.2, 0.2]
    assert rule.first_parts([200, 200]) == (200, 86)  # no more than its share
    rule.launch_s = [0.02, 0.02]
    both = {0: 300.0, 1: 100.0}
    sizes = [rule.chunk(0, 210, left, both) for left in (100, 50, 10)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] >= 4
    assert rule.chunk(0, 200, 9, both) == 9  # the ten that it lacks, of which nine are left
    assert rule.chunk(0, 210, 5, both) == 5  # one alone would be left, and a pass has two at least
    assert rule.chunk(1, 70, 100, both) > 0
    assert rule.chunk(1, 70, 10, {0: 300.0, 1: 10.0}) == 0
    assert rule.chunk(1, 70, 10, {1: 10.0}) > 0  # nobody else is there
    assert rule.chunk(1, 40, 100, {1: 10.0}) < 30  # it lacks thirty, as it was; it is slow now


def test_what_cannot_be_divided_is_refused() -> None:
    for workers, total, lower in ((0, 5, 1), (6, 5, 1), (2, 5, 3), (2, 5, 0)):
        with pytest.raises(ConfigError, match="raise batch_size"):
            FinishTogether(workers, total, lower)


@pytest.mark.parametrize(("held", "gain"), [(25, 0.01), (2, 0.1)])
def test_it_is_ahead_where_load_flickers(held: int, gain: float) -> None:
    use = np.clip(np.random.default_rng(0).beta(1.0, 4.0, (200, 8)), 0.0, 0.9)
    case = flicker(use, held, seed=1)
    limit_s = oracle(case).iteration_s
    plain = limit_s / ours(case, balancers.resolve("lb-bsp")).iteration_s
    assert limit_s / together(case).iteration_s > plain + gain


@pytest.mark.parametrize("number", [0, 5, 7])
def test_it_is_not_behind_where_load_is_steady(number: int) -> None:
    case = cases(lambda name: None, 0)[number]
    limit_s = oracle(case).iteration_s
    plain = limit_s / ours(case, balancers.resolve("lb-bsp")).iteration_s
    assert limit_s / together(case).iteration_s > plain - 0.012


def test_what_a_launch_takes_is_found_under_load_that_changes() -> None:
    fit, rng = LaunchFit(), np.random.default_rng(0)
    fit.add([8], [1.0])
    assert fit.seconds == 0.0
    for _ in range(100):
        load, sizes = rng.uniform(1.0, 4.0), rng.integers(8, 100, 4).tolist()
        fit.add(sizes, [load * (0.03 + 0.01 * size) * math.exp(rng.normal(0.0, 0.02)) for size in sizes])
    assert fit.seconds == pytest.approx(0.03 * load, rel=0.2)
