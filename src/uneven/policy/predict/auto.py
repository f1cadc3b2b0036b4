"""A mixture of predictors, weighted by their recent accuracy."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NotRequired, TypedDict

from uneven.errors import ConfigError
from uneven.policy.core.plain import Amount, Count, Misfit, Positive, inside, read
from uneven.policy.core.views import Observation
from uneven.policy.predict._learner import Doubt, DoubtState
from uneven.policy.predict.predictor import Lesson, Predictor, measured, predictors

EXPERTS = ("last", "ema", "steady", "arima", "rnn", "lstm", "narx")  # the paper's six and ours
_MOST_LOSS = 50.0  # of one iteration: an error of ten times the usual one; larger ones are clipped
_USUAL_WEIGHT = 0.005  # of the newest in the usual error, which is a long-run mean
_FIRST_ERROR = 0.1  # relative, as all errors here; assumed at first …
_FIRST_WORTH = 10  # … with the weight of this many iterations
_LEAST_ERROR = 0.005  # smaller ones do not distinguish the experts
_RATES = (0.25, 1.0)  # slow enough for noise, fast enough for a worker whose behavior changes
_RATE_BETWEEN = 0.5  # of learning which rate is better


@dataclass(frozen=True, slots=True)
class _Errand(Lesson):
    """A lesson and the index of its expert."""

    place: int
    lesson: Lesson

    def learn(self) -> tuple[int, Any]:
        return self.place, self.lesson.learn()


class _Weights:
    """The weights of the experts: each is multiplied by exp(−rate · loss); a small part of the sum is spread evenly."""

    def __init__(self, n: int, rate: float, share: float) -> None:
        self._rate = rate
        self._share = share
        self.values = [1.0 / n] * n

    def mean(self, forecasts: Sequence[float]) -> float:
        return math.fsum(weight * one for weight, one in zip(self.values, forecasts, strict=True))

    def learn(self, losses: Sequence[float]) -> None:
        least = min(losses)
        kept = [
            weight * math.exp(self._rate * (least - loss)) for weight, loss in zip(self.values, losses, strict=True)
        ]
        # Spread a part, so that an expert that was bad can become good again.
        total, even = math.fsum(kept), self._share / len(kept)
        self.values = [(1.0 - self._share) * weight / total + even for weight in kept]


class _AutoState(TypedDict):
    weights: list[list[Amount]]
    between: NotRequired[list[Amount]]
    error: Positive
    seen: Count
    doubt: DoubtState
    turn: Count
    experts: list[dict[str, Any]]


class Auto(Predictor):
    """The mean of several predictors, weighted by their recent accuracy (ours).

    Choose it with ``"lb-bsp:predictor=auto"``. It costs the sum of its experts: 1.2 to 1.6 % of iterations of about 100
    ms, more than the default budget. It pays off if iterations are long and the best predictor is unknown; it took at
    most 1.03 times as long as the best one. docs/reference.md compares all.

    Each expert loses half the square of its relative error, in units of the usual error. Its weight falls by the
    exponential of that (Bayes' rule for normal errors). Every iteration a small part of all weight is spread over the
    experts (fixed share: Herbster and Warmuth, Machine Learning 1998). The best learning rate depends on the noise and
    on how often it changes; so several such means, each with its own rate, are mixed in the same way.

    Args:
        experts: names of predictors.
        rate: of learning, above 0, or several; 1 is Bayes' rule.
        share: part of all weight that is spread over the experts in every iteration, 0 … 0.5.
    """

    def __init__(
        self,
        *,
        experts: str | tuple[str | Predictor, ...] = EXPERTS,
        rate: float | tuple[float, ...] = _RATES,
        share: float = 0.001,
    ) -> None:
        rates = rate if isinstance(rate, tuple) else (rate,)
        if not rates:
            raise ConfigError("auto: rate = () must be a number, or several, as in 0.25/1")
        for name, value, most in (*(("rate", one, 10.0) for one in rates), ("share", share, 0.5)):
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.0 <= value <= most:
                raise ConfigError(f"auto: {name} = {value!r} must be a number from 0 to {most:g}")
        names = (experts,) if isinstance(experts, str) else experts
        if not isinstance(names, tuple) or not names or "auto" in names:
            raise ConfigError(f"auto: experts = {experts!r} must be names of other predictors, as in last/ema/narx")
        self._experts = tuple(predictors.resolve(name) for name in names)
        self.watches = any(expert.watches for expert in self._experts)
        self._mixtures = tuple(_Weights(len(names), float(one), float(share)) for one in rates)
        self._between = _Weights(len(rates), _RATE_BETWEEN, float(share))
        self._error = _FIRST_ERROR  # root mean square
        self._seen = 0  # iterations
        self._doubt = Doubt()
        self._turn = 0  # the expert whose lesson comes first

    def observe(self, seen: Observation) -> None:
        speed = measured(seen)
        if speed is None:
            return
        # Weigh the experts by their predictions of this iteration before they see it.
        forecasts = [expert.predict() for expert in self._experts]
        means = [mixture.mean(forecasts) for mixture in self._mixtures]
        together = self._between.mean(means)
        self._doubt.compare(together, speed)
        self._seen += 1
        if together > 0.0:
            losses = self._losses(forecasts, speed)
            for mixture in self._mixtures:
                mixture.learn(losses)
            self._between.learn(self._losses(means, speed))
            # A long-run error: a small gain in a long calm must not outweigh a large loss at the next change.
            newest, error = max(_USUAL_WEIGHT, 1.0 / (self._seen + _FIRST_WORTH)), _missed(together, speed)
            self._error = max(_LEAST_ERROR, math.sqrt(self._error**2 + newest * (error * error - self._error**2)))
        for expert in self._experts:
            expert.observe(seen)

    def _losses(self, forecasts: Sequence[float], speed: float) -> list[float]:
        unit = 0.5 / self._error**2
        # Clipped, so that a lone spike changes little.
        return [min(_missed(one, speed) ** 2 * unit, _MOST_LOSS) for one in forecasts]

    def _mean(self, forecasts: Sequence[float]) -> float:
        return self._between.mean([mixture.mean(forecasts) for mixture in self._mixtures])

    def predict(self, ahead: int = 1) -> float:
        return self._mean([expert.predict(ahead) for expert in self._experts])

    def weights(self) -> tuple[float, ...]:
        columns = zip(*(mixture.values for mixture in self._mixtures), strict=True)
        return tuple(self._between.mean(column) for column in columns)

    def doubt(self) -> float:
        return self._doubt.value()

    def lesson(self) -> Lesson | None:
        """Return one expert's lesson; they take turns."""
        n = len(self._experts)
        for place in (*range(self._turn, n), *range(self._turn)):
            lesson = self._experts[place].lesson()
            if lesson is not None:
                self._turn = (place + 1) % n
                return _Errand(place, lesson)
        return None

    def absorb(self, learnt: Any) -> None:
        place, what = learnt
        self._experts[place].absorb(what)

    def state_dict(self) -> dict[str, Any]:
        return {
            "weights": [list(mixture.values) for mixture in self._mixtures],
            "between": list(self._between.values),
            "error": self._error,
            "seen": self._seen,
            "doubt": self._doubt.state_dict(),
            "turn": self._turn,
            "experts": [expert.state_dict() for expert in self._experts],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned, without weights that belong to other rates.

        Raises:
            ConfigError: the state has another number of experts.
        """
        saved, n = read(_AutoState, state), len(self._experts)
        if len(saved["experts"]) != n:
            raise ConfigError(
                f"auto: the state has {len(saved['experts'])} experts, but this predictor {n}: give the same experts"
            )
        if saved["turn"] >= n:
            raise Misfit(saved["turn"], f"below {n}, the number of experts", "turn")
        between, weights = saved.get("between", []), saved["weights"]
        if len(between) == len(self._mixtures):
            whole = [sum(one) > 0.0 and len(one) == n for one in weights]
            if len(whole) != len(between) or not all(whole) or not sum(between) > 0.0:
                raise Misfit(weights, f"{len(between)} lists of {n} weights, some above 0", "weights")
            self._between.values = between
            for mixture, values in zip(self._mixtures, weights, strict=True):
                mixture.values = values
        self._error, self._turn, self._seen = saved["error"], saved["turn"], saved["seen"]
        self._doubt.load_state_dict(state["doubt"])
        for place, (expert, learnt) in enumerate(zip(self._experts, saved["experts"], strict=True)):
            with inside(f"experts[{place}]"):
                expert.load_state_dict(learnt)


def _missed(forecasts: float, came: float) -> float:
    # Logarithm of the ratio; a prediction of 0 counts as a millionth.
    return math.log(max(forecasts / came, 1e-6))
