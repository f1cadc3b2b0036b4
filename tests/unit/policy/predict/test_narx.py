"""NARX: LB-BSP's acceptance test 5, its net by finite differences, and what it does where it cannot know."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from shown import show

from uneven.errors import ConfigError
from uneven.policy.core.views import Observation
from uneven.policy.predict import EMA, NARX, predictors
from uneven.policy.predict._past import Past
from uneven.policy.predict.narx import NarxNet


def loads(n: int, seed: int, noise: float = 0.01) -> tuple[list[float], list[float]]:
    """Speeds, and use by others as it is right after each iteration: blocks without and with a load."""
    rng = np.random.default_rng(seed)
    use = np.zeros(n + 1)
    start = 0
    while start < n:
        length = int(rng.integers(20, 40))
        use[start : start + length] = 0.0 if use[start - 1] else rng.choice([0.3, 0.5, 0.6])
        start += length
    speeds = 100.0 * (1.0 - use[:-1]) * np.exp(rng.normal(0.0, noise, n))
    return speeds.tolist(), np.clip(use[1:] + rng.normal(0.0, 0.01, n), 0.0, 1.0).tolist()


def noisy(n: int) -> list[float]:
    return (100.0 * (1.0 + np.random.default_rng(0).normal(0.0, 0.02, n))).tolist()


@pytest.mark.parametrize("seed", range(5))
def test_a_slowdown_that_the_processor_announces_is_followed_at_once(seed: int) -> None:
    speeds, cpu = loads(400, seed)
    speeds, cpu = [*speeds, *[100.0] * 30], [*cpu[:-1], 0.0, *[0.0] * 29, 0.5]
    predictor = NARX()
    show(predictor, speeds, cpu)
    assert predictor.predict() == pytest.approx(50.0, abs=5.0), "before the first slow iteration"
    assert show(EMA(), [*speeds, 50.0])[-1] > 95.0


@pytest.mark.parametrize("spike", [10.0, 400.0])
@pytest.mark.parametrize("seed", range(3))
def test_a_lone_spike_that_nothing_announces_is_ignored(spike: float, seed: int) -> None:
    speeds, cpu = loads(400, seed)
    speeds, cpu = [*speeds, *[100.0] * 30], [*cpu[:-1], 0.0, *[0.0] * 30]
    calm, spiked = NARX(), NARX()
    show(calm, [*speeds, 100.0], [*cpu, 0.0])
    show(spiked, [*speeds, spike], [*cpu, 0.0])
    assert spiked.predict() == pytest.approx(calm.predict(), rel=0.005)
    show(calm, [100.0] * 5, [0.0] * 5)
    show(spiked, [100.0] * 5, [0.0] * 5)
    assert spiked.predict() == pytest.approx(calm.predict(), rel=0.005)


def test_without_holding_a_spike_counts() -> None:
    speeds = noisy(120)
    held, taken = NARX(), NARX(hold=0)
    show(held, [*speeds, 10.0, 100.0])
    show(taken, [*speeds, 10.0, 100.0])
    assert held.predict() == pytest.approx(100.0, rel=0.03)
    assert taken.predict() < 93.0


def test_the_limit_of_holding_back_is_no_jump() -> None:
    before, answers = NARX(hold=4), []
    show(before, noisy(120))
    for place in range(200):
        predictor = copy.deepcopy(before)
        show(predictor, [100.0 * (1.0 - place / 400)])
        answers.append(predictor.predict())
    assert max(abs(one - other) for one, other in pairwise(answers)) < 0.3
    assert min(answers) < 0.99 * answers[0]
    assert answers[-1] == pytest.approx(answers[0], rel=0.03), "and far beyond it nothing is taken in"


def test_frequent_odd_iterations_are_usual_ones() -> None:
    wild = np.where(np.random.default_rng(3).random(300) < 0.4, 40.0, 100.0).tolist()
    assert 60 < np.mean(show(NARX(), wild)[-50:]) < 90


@pytest.mark.parametrize("after", [30.0, 60.0, 300.0])
def test_a_lasting_change_that_nothing_announces_is_taken_in_with_the_second_iteration(after: float) -> None:
    speeds = noisy(120)
    predictor, all_taken = NARX(), NARX(hold=0)
    show(predictor, [*speeds, after])
    show(all_taken, [*speeds, after])
    assert predictor.predict() == pytest.approx(100.0, rel=0.05)
    show(predictor, [after])
    show(all_taken, [after])
    assert predictor.predict() == pytest.approx(all_taken.predict(), rel=0.05)
    show(predictor, [after] * 10)
    assert predictor.predict() == pytest.approx(after, rel=0.1)


def test_it_works_without_any_reading() -> None:
    rng = np.random.default_rng(0)
    speeds = [100.0]
    for _ in range(400):
        speeds.append(100.0 + 0.95 * (speeds[-1] - 100.0) + rng.normal(0.0, 3.0))
    missed = {kind: np.square(np.subtract(show(kind(), speeds), speeds)[100:]).mean() for kind in (NARX, EMA)}
    assert missed[NARX] < 0.8 * missed[EMA]


def test_a_reading_that_stops_coming_is_taken_to_be_what_it_was() -> None:
    speeds, cpu = loads(300, 1)
    predictor = NARX()
    show(predictor, speeds, cpu)
    before = predictor.predict()
    predictor.observe(Observation(iteration=300, samples=100, local_s=100 / before))
    assert predictor.predict() == pytest.approx(before, rel=0.05)


def test_until_it_is_warm_it_is_the_moving_average() -> None:
    speeds, cpu = loads(200, 2)
    told, average = show(NARX(warm_up=50, hold=0), speeds, cpu), show(EMA(), speeds)
    assert told[1:5] == pytest.approx([np.mean(speeds[:k]) for k in range(1, 5)])
    assert told[20:50] == pytest.approx(average[20:50], rel=0.02)
    assert told[60:] != pytest.approx(average[60:], rel=0.02)


def test_it_never_leaves_the_sane_range() -> None:
    rng = np.random.default_rng(4)
    speeds = np.exp(rng.normal(0.0, 2.0, 300)).tolist()
    predictor = NARX(warm_up=8, every=1, penalty=1e-6, hold=0)
    for k, speed in enumerate(speeds):
        show(predictor, [speed], [rng.random()], first=k)
        if k >= 20:
            middle = sorted(speeds[k - 19 : k + 1])[10]
            assert 0.24 * middle < predictor.predict() < 4.1 * middle


def test_a_forecast_far_ahead_holds_what_is_known_now() -> None:
    speeds, cpu = loads(430, 3)
    predictor = NARX()
    show(predictor, speeds[:400], cpu[:400])
    assert predictor.predict(5) == pytest.approx(predictor.predict(), rel=0.1)


def test_reports_over_several_iterations_are_rows_of_that_length() -> None:
    predictor = predictors.resolve("narx:warm_up=4,every=1")
    for k in range(40):
        predictor.observe(Observation(iteration=10 * k, samples=1000, local_s=10.0 + k % 2, iterations=10))
        if lesson := predictor.lesson():
            predictor.absorb(lesson.learn())
    assert predictor.predict(7) == predictor.predict(10) == predictor.predict()
    assert predictor.predict(20) != predictor.predict()


def net(seed: int = 0) -> tuple[NarxNet, np.ndarray]:
    past = Past(64)
    rng = np.random.default_rng(seed)
    for speed, cpu, memory in rng.uniform([50, 0, 0], [150, 1, 1], (20, 3)):
        past.append(speed, cpu, memory)
    blank = NarxNet.blank(hidden=3, delay=2, rows_per_lesson=64, penalty=1.0)
    weights = rng.normal(0, 0.5, len(blank.weights))
    return replace(blank, weights=weights, mean_use=(0.4, 0.6)), past.rows


def test_the_slopes_are_those_of_finite_differences() -> None:
    model, rows = net()
    inputs = model._inputs(rows)
    _, units = model._output(model.weights, inputs)
    slopes = model._jacobian(inputs, units)
    for place in range(len(model.weights)):
        step = np.zeros(len(model.weights))
        step[place] = 1e-6
        above, below = (model._output(model.weights + sign * step, inputs)[0] for sign in (1, -1))
        assert slopes[:, place] == pytest.approx((above - below) / 2e-6, abs=1e-6)


def test_one_forecast_is_the_last_row_of_many() -> None:
    model, rows = net()
    unread = np.array(rows)
    unread[:, 2:] = math.nan
    for table in (rows, unread):
        outputs, _ = model._output(model.weights, model._inputs(table))
        assert model.forecast(table, 1) == pytest.approx(rows[-1, 1] * math.exp(min(max(outputs[-1], -3.0), 3.0)))


def test_a_wild_net_stays_within_what_a_number_can_say() -> None:
    model, rows = net()
    for sign in (1.0, -1.0):
        wild = replace(model, weights=sign * 1e6 * np.ones(len(model.weights)))
        assert wild.forecast(rows, 1) / rows[-1, 1] in (pytest.approx(math.exp(3.0)), pytest.approx(math.exp(-3.0)))


def test_a_blank_net_is_the_moving_average() -> None:
    _, rows = net()
    blank = NarxNet.blank(hidden=3, delay=2, rows_per_lesson=64, penalty=1.0)
    assert blank.forecast(rows, 1) == pytest.approx(rows[-1, 1])


def test_lessons_lower_the_error() -> None:
    _, rows = net()
    model: NarxNet = NarxNet.blank(hidden=3, delay=2, rows_per_lesson=64, penalty=1e-3)
    missed = []
    for number in range(20):
        model = model.study(rows, number)
        target = np.log(rows[3:, 0] / rows[2:-1, 1])
        missed.append(float(np.square(target - model._output(model.weights, model._inputs(rows[:-1]))[0]).sum()))
    assert missed[-1] < missed[0] / 2


def test_lessons_become_rarer() -> None:
    speeds, cpu = loads(1200, 5)
    predictor = NARX(every=5, warm_up=20)
    handed: list[int] = []
    for k, (speed, use) in enumerate(zip(speeds, cpu, strict=True)):
        predictor.observe(Observation(iteration=k, samples=100, local_s=100 / speed, cpu=use))
        if predictor.lesson():
            handed.append(k)
    assert handed[0] == 4
    assert handed[1] - handed[0] == 5
    assert handed[-1] - handed[-2] == 25


def test_what_another_predictor_learnt_is_refused() -> None:
    speeds, cpu = loads(50, 0)
    other = predictors.resolve("arima")
    for k, speed in enumerate(speeds):
        other.observe(Observation(iteration=k, samples=100, local_s=100 / speed, cpu=cpu[k]))
    lesson = other.lesson()
    assert lesson is not None
    with pytest.raises(TypeError, match="NARX fits a NarxNet, not a Arima"):
        NARX().absorb(lesson.learn())
    with pytest.raises(NotImplementedError, match="EMA has no model to share"):
        EMA().absorb(None)


@pytest.mark.parametrize(
    "spec",
    ["narx:hidden=0", "narx:delay=17", "narx:warm_up=3", "narx:every=0", "narx:memory=15", "narx:rows=1",
     "narx:penalty=0", "narx:penalty=high", "narx:hold=-1", "narx:hold=true"],
)  # fmt: skip
def test_bad_options_are_refused(spec: str) -> None:
    with pytest.raises(ConfigError):
        predictors.resolve(spec)
