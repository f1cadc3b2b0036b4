"""The mixture of the three that cost next to nothing."""

from __future__ import annotations

import math

import numpy as np
import pytest
from shown import show

from uneven.errors import ConfigError
from uneven.policy.predict import EMA, Auto, Last, Light, Predictor, Steady, predictors


def missed(told: list[float], speeds: list[float], settled: int = 50) -> float:
    return float(np.sqrt(np.square(np.divide(told, speeds)[settled:] - 1.0).mean()))


def series(kind: str, seed: int = 0) -> list[float]:
    rng = np.random.default_rng(seed)
    noise = rng.normal(0.0, 0.05, 600)
    if kind == "noise":
        return (100.0 * np.exp(noise)).tolist()
    if kind == "walk":
        return (100.0 * np.exp(np.cumsum(noise / 2))).tolist()
    levels = np.repeat([100.0, 50.0] * 8, 40)[:600]  # steps
    return (levels * np.exp(noise / 5)).tolist()


@pytest.mark.parametrize("kind", ["noise", "walk", "steps"])
def test_it_is_as_right_as_the_best_of_them_and_as_the_costly_mixture(kind: str) -> None:
    speeds = series(kind)
    together = missed(show(Light(), speeds), speeds)
    alone = {type(one).__name__: missed(show(one, speeds), speeds) for one in (Last(), EMA(), Steady())}
    assert together < 1.05 * min(alone.values())
    assert together < 1.05 * missed(show(Auto(experts=("last", "ema", "steady")), speeds), speeds)
    assert max(alone.values()) > 1.2 * min(alone.values()), "so it matters which"


def test_who_has_been_right_of_late_has_the_weight() -> None:
    light = Light()
    show(light, series("walk"))
    last, _, steady = light.weights()
    assert last > 5 * steady
    show(light, series("noise"))
    last, _, steady = light.weights()
    assert steady > 5 * last
    assert math.fsum(light.weights()) == pytest.approx(1.0)


def test_a_lone_spike_takes_nobodys_weight_for_good_and_moves_little() -> None:
    light = Light()
    show(light, series("noise"))
    before, weights = light.predict(), light.weights()
    show(light, [10.0])
    assert light.predict() == pytest.approx(before, rel=0.1)
    show(light, series("noise", 1)[:100])
    assert light.weights() == pytest.approx(weights, abs=0.25)


def test_a_perfect_clock_and_absurd_speeds_do_no_harm() -> None:
    light = Light()
    show(light, [100.0] * 2000)
    assert light.predict() == pytest.approx(100.0)
    assert show(light, [50.0] * 5)[-1] == pytest.approx(50.0, rel=0.02), "it still learns from a change"
    for speed in (1e-300, 1e300, 1e-300):
        show(light, [speed])
        assert math.isfinite(light.predict())
        assert math.fsum(light.weights()) == pytest.approx(1.0)


def test_it_knows_its_doubt_from_the_second_iteration_on_and_learns_nothing_beside() -> None:
    light, steady, auto = Light(), Steady(), Auto(experts=("last", "ema", "steady"))
    one: Predictor
    for one in (light, steady, auto):
        show(one, [100.0, 120.0])
    assert light.doubt() == steady.doubt() > 0.0
    assert auto.doubt() == 0.0, "the record of a mixture tells nothing yet"
    assert light.lesson() is None


@pytest.mark.parametrize("spec", ["light:rate=-1", "light:rate=x", "light:keep=1.5", "light:rate=true"])
def test_options_that_make_no_sense_are_refused_under_its_name(spec: str) -> None:
    with pytest.raises(ConfigError, match=r"light: (rate|keep) = "):
        predictors.resolve(spec)
