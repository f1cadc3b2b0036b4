"""Iterations that are finished together: the rule, and what it gains where load flickers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from uneven.balance import balancers
from uneven.errors import ConfigError
from uneven.loops.finish import FinishTogether, next_worker
from uneven_bench.flicker.bench import run
from uneven_bench.flicker.play import flicker, together
from uneven_bench.rivals.cases import cases
from uneven_bench.rivals.loops import oracle, ours


@settings(max_examples=50)
@given(
    speeds=st.lists(st.floats(1.0, 500.0), min_size=1, max_size=6), total=st.integers(6, 400),
    launch_s=st.floats(0.0, 0.2), seed=st.integers(0, 99),
)  # fmt: skip
def test_every_sample_of_every_iteration_is_given_out_once(
    speeds: list[float], total: int, launch_s: float, seed: int
) -> None:
    rule, rng = FinishTogether(len(speeds), total, [launch_s] * len(speeds)), np.random.default_rng(seed)
    for _ in range(12):
        now = [speed * math.exp(rng.normal(0.0, 0.5)) for speed in speeds]
        done = [*rule.first_parts()]
        first_s = [0.01 + count / speed for count, speed in zip(done, now, strict=True)]
        left = total - sum(done)
        assert 0 <= left <= total // 2 + 1
        while left:
            worker = int(rng.integers(len(speeds)))
            chunk = rule.chunk(worker, left, now[worker] / sum(now))
            assert 0 < chunk <= left
            done[worker] += chunk
            left -= chunk
        assert sum(done) == total
        rule.ended(done, [0.01 + count / speed for count, speed in zip(done, now, strict=True)], first_s)


def test_the_rest_grows_with_the_error_and_is_nothing_where_all_end_together() -> None:
    rule = FinishTogether(2, 200, [0.01, 0.01])
    for _ in range(40):
        rule.ended([100, 100], [1.0, 1.0], [1.0, 1.0])
    assert rule.rest == 0.0
    assert rule.first_parts() == (100, 100)
    for _ in range(40):
        rule.ended([100, 100], [1.0, 3.0], [1.0, 3.0])
    assert rule.rest == pytest.approx(0.5, abs=1e-3)
    assert rule.first_parts() == (75, 25)
    assert rule.chunk(0, 100, 0.75) > rule.chunk(0, 50, 0.75) > rule.chunk(0, 50, 0.25) >= 4
    assert FinishTogether(2, 200, [1.0, 1.0]).chunk(0, 3, 0.5) == 3
    assert next_worker([1.0, 2.0], [5.0, 3.0]) == 1


def test_what_cannot_be_divided_is_refused() -> None:
    for workers, total, least in ((0, 5, 1), (6, 5, 1), (2, 5, 0)):
        with pytest.raises(ConfigError, match="too few"):
            FinishTogether(workers, total, [0.0] * workers, least)


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


def test_the_bench_plays_made_up_loads_without_recordings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UNEVEN_DATA", raising=False)
    monkeypatch.setattr("uneven_bench.flicker.bench.cases", lambda recorded, seed: ())
    found = run(True, lambda *_: None)
    assert found["flicker"]["made up"]["2"]["together"] > found["flicker"]["made up"]["2"]["lb-bsp"]
