"""Whoever has been right of late. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from uneven.core.views import Observation
from uneven.errors import ConfigError
from uneven.predict.base import Lesson, Predictor, measured, predictors
from uneven.predict.doubt import Doubt

EXPERTS = ("last", "ema", "steady", "arima", "rnn", "lstm", "narx")
"""The paper's six and ours."""

_MOST_LOSS = 50.0  # of one iteration, which is an error of ten times the usual one; a larger one counts as this
_USUAL_WEIGHT = 0.005  # of the newest in the usual error, which is that of the long run
_FIRST_ERROR = 0.1  # relative, as all errors here; assumed at first …
_FIRST_WORTH = 10  # … as if it had been that of so many iterations
_LEAST_ERROR = 0.005  # smaller ones cannot tell the experts apart


@dataclass(frozen=True, slots=True)
class _Errand(Lesson):
    """A lesson, and whose it is."""

    place: int
    lesson: Lesson

    def learn(self) -> tuple[int, Any]:
        """What the expert at that place is to absorb."""
        return self.place, self.lesson.learn()


class Auto(Predictor):
    """The mean of several predictors, weighted by how right each has been of late (ours).

    Each loses half the square of its error, in usual errors, and its weight falls by the exponential of that, as in
    Bayes' rule for normal errors. Errors are relative, for what counts is how long the slowest worker takes. The usual
    error is that of the long run: what an expert wins in a long calm does not outweigh what it loses at the next
    change. Every iteration all experts are given a small part of all weight, so that one that was bad can be good again
    (fixed share: Herbster and Warmuth, Machine Learning 1998). What one iteration can cost is bounded, so a lone spike
    upsets nothing.

    Args:
        experts: names of predictors.
        rate: of learning, above 0; 1 is Bayes' rule.
        share: part of all weight that is spread anew over the experts in every iteration, 0 … 0.5.

    Raises:
        ConfigError: an option out of range.
        UnknownNameError: no such predictor.
    """

    def __init__(
        self, *, experts: str | tuple[str | Predictor, ...] = EXPERTS, rate: float = 0.25, share: float = 0.001
    ) -> None:
        for name, value, most in (("rate", rate, 10.0), ("share", share, 0.5)):
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.0 <= value <= most:
                raise ConfigError(f"auto: {name} = {value!r} must be a number from 0 to {most:g}")
        names = (experts,) if isinstance(experts, str) else experts
        if not isinstance(names, tuple) or not names or "auto" in names:
            raise ConfigError(f"auto: experts = {experts!r} must be names of other predictors, as in last/ema/narx")
        self._experts = tuple(predictors.resolve(name) for name in names)
        self.watches = any(expert.watches for expert in self._experts)
        self._rate, self._share = float(rate), float(share)
        self._weights = [1.0 / len(names)] * len(names)
        self._error = _FIRST_ERROR  # root mean square
        self._seen = 0  # iterations
        self._doubt = Doubt()
        self._turn = 0  # whose lesson is looked for first

    def observe(self, seen: Observation) -> None:
        """Weigh the experts by what they said about this iteration, then show it to them."""
        speed = measured(seen)
        if speed is None:
            return
        told = [expert.predict() for expert in self._experts]
        together = self._mean(told)
        self._doubt.compare(together, speed)
        self._seen += 1
        if together > 0.0:
            self._weigh([_missed(one, speed) for one in told], _missed(together, speed))
        for expert in self._experts:
            expert.observe(seen)

    def _weigh(self, errors: list[float], error: float) -> None:
        unit = 0.5 / self._error**2
        losses = [min(one * one * unit, _MOST_LOSS) for one in errors]
        least = min(losses)
        kept = [
            weight * math.exp(self._rate * (least - loss)) for weight, loss in zip(self._weights, losses, strict=True)
        ]
        total = math.fsum(kept)
        even = self._share / len(kept)
        self._weights = [(1.0 - self._share) * weight / total + even for weight in kept]
        newest = max(_USUAL_WEIGHT, 1.0 / (self._seen + _FIRST_WORTH))
        self._error = max(_LEAST_ERROR, math.sqrt(self._error**2 + newest * (error * error - self._error**2)))

    def _mean(self, told: list[float]) -> float:
        return math.fsum(weight * one for weight, one in zip(self._weights, told, strict=True))

    def predict(self, ahead: int = 1) -> float:
        """The weighted mean."""
        return self._mean([expert.predict(ahead) for expert in self._experts])

    def weights(self) -> tuple[float, ...]:
        """The experts' present weights, in their order; they add up to 1."""
        return tuple(self._weights)

    def doubt(self) -> float:
        """See :class:`~uneven.predict.doubt.Doubt`."""
        return self._doubt.value()

    def lesson(self) -> Lesson | None:
        """One expert's lesson at a time; they take turns."""
        n = len(self._experts)
        for place in (*range(self._turn, n), *range(self._turn)):
            lesson = self._experts[place].lesson()
            if lesson is not None:
                self._turn = (place + 1) % n
                return _Errand(place, lesson)
        return None

    def absorb(self, learnt: Any) -> None:
        """Hand it to the expert whose it is."""
        place, what = learnt
        self._experts[place].absorb(what)

    def state_dict(self) -> dict[str, Any]:
        """Weights, and each expert's state."""
        return {
            "weights": list(self._weights),
            "error": self._error,
            "seen": self._seen,
            "doubt": self._doubt.state_dict(),
            "turn": self._turn,
            "experts": [expert.state_dict() for expert in self._experts],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of :meth:`state_dict`.

        Raises:
            ConfigError: the state is that of another number of experts.
        """
        if len(state["experts"]) != len(self._experts):
            raise ConfigError(f"auto: this state has {len(state['experts'])} experts, not {len(self._experts)}")
        self._weights, self._error = [float(weight) for weight in state["weights"]], float(state["error"])
        self._doubt.load_state_dict(state["doubt"])
        self._turn, self._seen = int(state["turn"]), int(state["seen"])
        for expert, learnt in zip(self._experts, state["experts"], strict=True):
            expert.load_state_dict(learnt)


def _missed(told: float, came: float) -> float:
    """Logarithm of a prediction in units of what came; one of nothing counts as a millionth."""
    return math.log(max(told / came, 1e-6))
