"""The mixture: never much worse than the best of its experts."""

from __future__ import annotations

import json

import numpy as np
import pytest
from shown import show

from uneven.errors import ConfigError, UnknownNameError
from uneven.policy.core.views import Observation
from uneven.policy.predict import EMA, Auto, Last, Predictor, predictors
from uneven.policy.predict.auto import EXPERTS


def missed(told: list[float], speeds: list[float]) -> float:
    return float(np.sqrt(np.square(np.subtract(told, speeds)[50:]).mean()))


@pytest.mark.parametrize("kind", ["noise", "walk"])
def test_it_finds_the_better_expert(kind: str) -> None:
    rng = np.random.default_rng(0)
    noise = rng.normal(0.0, 5.0, 400)
    speeds = (200 + noise if kind == "noise" else 200 + np.cumsum(noise / 2)).tolist()
    auto = Auto(experts=("last", "ema"), share=0.001)
    together = missed(show(auto, speeds), speeds)
    alone = {name: missed(show(predictors.resolve(name), speeds), speeds) for name in ("last", "ema")}
    assert together < 1.03 * min(alone.values())
    last, ema = auto.weights()
    assert (last < ema) == (kind == "noise")


def test_a_calm_does_not_make_it_forget_who_was_right_about_changes() -> None:
    rng = np.random.default_rng(1)
    levels = np.repeat([100.0, 50.0] * 8, 40)
    speeds = (levels * np.exp(rng.normal(0.0, 0.01, len(levels)))).tolist()
    auto = Auto(experts=("last", "ema"))
    assert missed(show(auto, speeds), speeds) < 1.1 * missed(show(Last(), speeds), speeds)


@pytest.mark.parametrize(("kind", "better"), [("noise", 0.05), ("blocks", 2.0)])
def test_of_several_rates_it_does_not_matter_which_is_the_better_one(kind: str, better: float) -> None:
    rng = np.random.default_rng(2)
    speeds = np.full(2000, 100.0)
    odd = np.arange(2000) // 20 % 2 == 1 if kind == "blocks" else np.zeros(2000, bool)
    scale = np.stack([np.where(odd, 0.2, 0.02), np.where(odd, 0.02, 0.2)]) if kind == "blocks" else [[0.2], [0.2]]
    lines = (speeds * np.exp(rng.normal(0.0, 1.0, (2, 2000)) * scale)).tolist()

    def error(rate: float | tuple[float, ...]) -> float:
        auto = Auto(experts=(Scripted(lines[0]), Scripted(lines[1])), rate=rate)
        return missed(show(auto, speeds.tolist()), speeds.tolist())

    rates = (0.05, 2.0)
    alone = {rate: error(rate) for rate in rates}
    assert min(alone, key=lambda rate: alone[rate]) == better
    assert error(rates) < 1.03 * alone[better] < max(alone.values())


def test_weights_add_up_to_one_and_none_is_lost_for_ever() -> None:
    auto = Auto(experts=("last", "ema"), share=0.01)
    show(auto, [100.0, 10.0] * 200)
    assert sum(auto.weights()) == pytest.approx(1.0)
    assert min(auto.weights()) >= 0.005 * 0.99


def test_a_single_expert_is_itself() -> None:
    speeds = [100.0, 120.0, 90.0, 110.0] * 5
    assert show(Auto(experts="ema"), speeds)[1:] == pytest.approx(show(EMA(), speeds)[1:])


def test_the_experts_take_turns_in_learning() -> None:
    auto = Auto(experts=("arima", "narx"))
    kinds = set()
    for speed in [100.0, 101.0, 99.0] * 30:
        show_one(auto, speed)
        while (lesson := auto.lesson()) is not None:
            place, learnt = lesson.learn()
            kinds.add((place, type(learnt).__name__))
            auto.absorb((place, learnt))
    assert kinds == {(0, "Arima"), (1, "NarxNet")}


def show_one(auto: Auto, speed: float) -> None:
    from uneven.policy.core.views import Observation

    auto.observe(Observation(iteration=0, samples=100, local_s=100 / speed))


@pytest.mark.parametrize("alpha", [0.05, 0.2, 0.5, 1.0])
def test_the_doubt_is_the_standard_error(alpha: float) -> None:
    found = []
    for seed in range(4):
        noise = np.random.default_rng(seed).normal(0.0, 0.1, 1500)
        auto = Auto(experts=(EMA(alpha=alpha),))
        show(auto, (100 * (1 + noise)).tolist())
        found.append(auto.doubt())
    of_white_noise = 0.1 * np.sqrt(alpha / (2 - alpha))
    assert np.mean(found) == pytest.approx(of_white_noise, abs=0.01)
    assert Auto().doubt() == 0.0


def test_its_state_is_plain_and_goes_on() -> None:
    speeds = [100.0, 101.0, 99.0, 97.0] * 40
    old, new = Auto(), Auto()
    show(old, speeds, [0.1] * len(speeds), [0.5] * len(speeds))
    new.load_state_dict(json.loads(json.dumps(old.state_dict(), allow_nan=False)))
    assert show(new, speeds) == show(old, speeds)
    with pytest.raises(ConfigError, match=f"{len(EXPERTS)} experts, but this predictor 1"):
        Auto(experts="ema").load_state_dict(old.state_dict())
    other = Auto(rate=0.5)
    other.load_state_dict(old.state_dict())
    assert other.weights() == pytest.approx([1.0 / len(EXPERTS)] * len(EXPERTS))  # those of other rates are learnt anew


class Scripted(Predictor):
    """Says what it was told to say."""

    def __init__(self, lines: list[float]) -> None:
        self._lines, self._seen = lines, 0

    def observe(self, seen: Observation) -> None:
        self._seen += 1

    def predict(self, ahead: int = 1) -> float:
        return self._lines[min(self._seen, len(self._lines) - 1)]


def test_a_slow_time_counts_as_much_as_a_fast_one() -> None:
    speeds = [10.0, 200.0] * 100
    # A fifth off in the slow iterations, or in the fast ones: in samples per second the first is far better, in the
    # time that the slowest worker takes they are equals.
    auto = Auto(experts=(Scripted([8.0, 200.0] * 100), Scripted([10.0, 160.0] * 100)), share=0.01)
    show(auto, speeds)
    assert 0.1 < auto.weights()[0] < 0.9


def test_an_expert_that_foresees_a_standstill_is_borne() -> None:
    auto = Auto(experts=(Scripted([0.0]), Scripted([100.0])))
    show(auto, [100.0, 101.0] * 20)
    assert auto.weights()[0] < 0.01
    assert auto.predict() == pytest.approx(100.0, rel=0.01)


def test_options() -> None:
    auto = predictors.resolve("auto:experts=last/ema,rate=0.1/1/2")
    assert isinstance(auto, Auto)
    assert len(auto.state_dict()["weights"]) == 3
    auto = predictors.resolve("auto:experts=last/ema,rate=1,share=0.1")
    assert isinstance(auto, Auto)
    assert len(auto.weights()) == 2
    for spec in ("auto:rate=-1", "auto:share=0.6", "auto:experts=auto", "auto:experts=3"):
        with pytest.raises(ConfigError):
            predictors.resolve(spec)
    with pytest.raises(ConfigError, match=r"as in 0\.25/1"):
        Auto(rate=())
    with pytest.raises(UnknownNameError, match="did you mean 'ema'"):
        predictors.resolve("auto:experts=emma")
