"""The base of all predictors that train."""

import math
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

from uneven.errors import ConfigError
from uneven.policy.core.plain import Along, Amount, Count, Misfit, Positive, Range, Several, inside, read
from uneven.policy.core.views import Observation
from uneven.policy.predict._past import LEVEL, SPEED, Floats, Past, PastState
from uneven.policy.predict.predictor import Lesson, Predictor, measured

_AHEAD = 8  # iterations whose mean a prediction is compared with
_WEIGHT = 0.005  # of the newest comparison; the difference of two means needs many of them
_CLIP = 3.0  # times the usual error; a single spike counts as at most this much
_LEAST = 0.005  # relative; clocks are not more exact


class DoubtState(TypedDict):
    """The checkpoint of a :class:`Doubt`."""

    told: list[Positive]
    came: Annotated[list[Positive], Along("told")]
    sums: tuple[Amount, Amount, Annotated[float, Range(0.0, 1.0)]]


class Doubt:
    """The standard error of any predictor, estimated from its own predictions (ours); differences are relative.

    Let a prediction p of a speed s have noise of variance σ². On average it misses the next iteration by (p − s)² + σ²,
    and the mean of the next m by (p − s)² + σ²/m. Both are measured, so (p − s)² is known: (m · second − first) / (m −
    1).
    """

    def __init__(self) -> None:
        self._told: deque[float] = deque(maxlen=_AHEAD)  # predictions, oldest first …
        self._came: deque[float] = deque(maxlen=_AHEAD)  # … and actual values
        self._first = 0.0
        self._second = 0.0
        self._weight = 0.0

    def compare(self, told: float, came: float) -> None:
        """Compare a prediction (NaN is ignored) with the speed measured."""
        if math.isnan(told):
            return
        if self._weight:  # clip, so that one spike does not dominate the means
            reach = _CLIP * max(math.sqrt(self._first / self._weight), _LEAST)
            came = min(max(came, told * (1.0 - reach)), told * (1.0 + reach))
        self._told.append(told)
        self._came.append(came)
        if len(self._told) < _AHEAD:
            return
        oldest = self._told[0]
        mean = math.fsum(self._came) / _AHEAD
        self._first += _WEIGHT * ((self._came[0] / oldest - 1.0) ** 2 - self._first)
        self._second += _WEIGHT * ((mean / oldest - 1.0) ** 2 - self._second)
        self._weight += _WEIGHT * (1.0 - self._weight)

    def value(self) -> float:
        """Return the relative standard error of a prediction; 0 if unknown."""
        if not self._weight:
            return 0.0
        first, second = self._first / self._weight, self._second / self._weight
        # Dividing by the weight corrects the bias of the first comparisons, as in Adam's moments.
        apart = min(first, (_AHEAD * second - first) / (_AHEAD - 1))
        return math.sqrt(max(apart, _LEAST**2))

    def state_dict(self) -> dict[str, Any]:
        return {"told": list(self._told), "came": list(self._came), "sums": [self._first, self._second, self._weight]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        saved = read(DoubtState, state)
        self._told = deque(saved["told"], maxlen=_AHEAD)
        self._came = deque(saved["came"], maxlen=_AHEAD)
        self._first, self._second, self._weight = saved["sums"]


LOWEST, HIGHEST = 0.25, 4.0  # bounds of a prediction, relative to the median of the newest speeds [specification]

_MEDIAN_OF = 20
_RARER_AFTER = 20  # a lesson is due after 1 / 20 of the iterations seen so far …
_RAREST = 5  # … and at the latest after 5 times the shortest gap
_TRAINS_FROM = 0.25  # of the warm-up
_USUAL_WEIGHT = 0.05  # of the newest miss in the usual one
_USUAL_CLIP = 3.0  # times the usual miss; more counts as this
_FIRST_MISS = 0.1  # relative, assumed at first
_LEAST_MISS = 0.01  # relative; a machine without noise must not mistake its first hiccup for a change
_LONE = 10  # iterations since the last odd one after which an odd one counts as lone, not as usual
_NORMAL = 1.2533  # standard deviation over mean absolute deviation, of a normal distribution


class SpeedModel(ABC):
    """A frozen model of one worker's speed; learning returns another one."""

    @abstractmethod
    def forecast(self, rows: Floats, steps: int) -> float:
        """Return the samples per second ``steps`` rows after the last of ``rows`` (n, 6), see
        :mod:`uneven.policy.predict._past`."""

    @abstractmethod
    def study(self, rows: Floats, number: int) -> "SpeedModel":
        """Return the model after its ``number``-th lesson, on the newest rows, shape (n, 6)."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Return what was learned, as plain JSON-able data."""

    @abstractmethod
    def restored(self, state: dict[str, Any]) -> "SpeedModel":
        """Return the model with this ``state()`` and the options of this one."""


@dataclass(frozen=True, slots=True)
class Practice(Lesson):
    """One lesson of a model on a copy of its worker's past."""

    model: SpeedModel
    rows: Floats
    number: int

    def learn(self) -> SpeedModel:
        return self.model.study(self.rows, self.number)


class _LearnerState(TypedDict):
    past: PastState
    model: dict[str, Any] | None
    doubt: DoubtState
    counts: tuple[Several, Count, Count, Count, Count]
    held: Positive | None
    usual: Positive


class Learner(Predictor):
    """Keeps the past, creates lessons, and predicts with a model once it has learned enough; until then, with the EMA.

    A lone spike does not affect the next iteration: an iteration that misses the prediction by more than ``hold`` usual
    misses counts in part, and beyond twice that not at all; the past stores the prediction instead. If the next
    iteration is more like it than like the prediction, it was not a spike, and both count. A change that the model
    predicted, for instance from the use of the processor, misses nothing and is not held back.

    Args:
        model: blank.
        warm_up: iterations until the model predicts, at least 4.
        every: iterations between two lessons, at least 1; later they are up to five times rarer.
        memory: iterations to learn from, at least 16.
        hold: usual misses (standard deviations) from which an iteration is held back; 0 turns it off.
    """

    watches = True

    def __init__(self, model: SpeedModel, *, warm_up: int, every: int, memory: int, hold: float) -> None:
        for name, value, least in (("warm_up", warm_up, 4), ("every", every, 1), ("memory", memory, 16)):
            whole(name, value, least)
        if isinstance(hold, bool) or not isinstance(hold, (int, float)) or not 0.0 <= hold < math.inf:
            raise ConfigError(f"hold = {hold!r} must be a number of standard deviations, at least 0, for instance 4")
        self._model = model
        self._warm_up = warm_up
        self._every = every
        self._hold = float(hold)
        self._past = Past(memory)
        self._doubt = Doubt()
        self._per_row = 1  # iterations per row
        self._since = 0
        self._lessons = 0
        self._learnt = 0
        self._held: float | None = None
        self._usual = _FIRST_MISS
        self._calm = 0  # iterations since the last odd one
        self._next: float | None = None  # the prediction, cached

    def observe(self, seen: Observation) -> None:
        speed = measured(seen)
        if speed is None:
            return
        expected = self.predict()
        self._doubt.compare(expected, speed)
        self._take(speed, expected, seen)
        self._per_row = seen.iterations
        self._since += 1
        self._next = None

    def _take(self, speed: float, expected: float, seen: Observation) -> None:
        missed = math.log(speed / expected) if expected > 0.0 else 0.0
        usual_before = self._usual
        odd = self._hold > 0.0 and self._past.seen > 0 and abs(missed) > self._hold * usual_before
        # A lone odd iteration does not raise the usual miss; frequent ones do.
        if expected > 0.0 and (not odd or self._calm < _LONE):
            usual = _NORMAL * min(abs(missed), _USUAL_CLIP * self._usual)
            self._usual = max(_LEAST_MISS, self._usual + _USUAL_WEIGHT * (usual - self._usual))
        self._calm = 0 if odd else self._calm + 1
        if self._held is not None and self._no_spike(self._held, speed):
            # Not a spike after all: store the iteration that was held back.
            self._past.correct(self._held)
            odd = False
        kept = expected * math.exp(_redescended(missed, self._hold * usual_before)) if odd else speed
        self._past.append(kept, seen.cpu, seen.memory)
        self._held = speed if odd else None

    def _no_spike(self, held: float, speed: float) -> bool:
        # The iteration that follows a held one decides: closer to it, or to the value stored instead?
        assumed = float(self._past.rows[-1, SPEED])
        return abs(math.log(speed / held)) < abs(math.log(speed / assumed))

    def predict(self, ahead: int = 1) -> float:
        """Return the model's prediction, clipped, or the moving average."""
        if ahead <= self._per_row:
            if self._next is None:
                self._next = self._forecast(1)
            return self._next
        return self._forecast(round(ahead / self._per_row))

    def _forecast(self, steps: int) -> float:
        if not self._past.seen:
            return math.nan
        rows = self._past.rows
        level = float(rows[-1, LEVEL])
        if self._past.seen < self._warm_up or not self._learnt:
            return level
        # A model can err without bounds on inputs it has never seen, so its prediction is clipped below.
        speed, middle = self._model.forecast(rows, steps), self._past.median(_MEDIAN_OF)
        return min(max(speed, LOWEST * middle), HIGHEST * middle) if math.isfinite(speed) else level

    def doubt(self) -> float:
        return self._doubt.value()

    def lesson(self) -> Lesson | None:
        """Return the next lesson if enough iterations have passed since the last one."""
        seen = self._past.seen
        gap = min(max(seen // _RARER_AFTER, self._every), _RAREST * self._every)
        if seen < _TRAINS_FROM * self._warm_up or self._since < gap:
            return None
        self._since = 0
        self._lessons += 1
        # A copy, because the lesson runs in a background thread.
        return Practice(self._model, self._past.rows.copy(), self._lessons)

    def absorb(self, learnt: Any) -> None:
        if not isinstance(learnt, type(self._model)):
            raise TypeError(
                f"a {type(self).__name__} fits a {type(self._model).__name__}, not a {type(learnt).__name__}"
            )
        self._model = learnt
        self._learnt += 1
        self._next = None

    def state_dict(self) -> dict[str, Any]:
        return {
            "past": self._past.state_dict(),
            "model": self._model.state() if self._learnt else None,
            "doubt": self._doubt.state_dict(),
            "counts": [self._per_row, self._since, self._lessons, self._learnt, self._calm],
            "held": self._held,
            "usual": self._usual,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        saved = read(_LearnerState, state)
        model, learnt = saved["model"], saved["counts"][3]
        if (model is None) != (learnt == 0):
            raise Misfit(model, f"the weights after {learnt} lessons", "model")
        if model is not None:
            with inside("model"):
                self._model = self._model.restored(model)
        with inside("past"):
            self._past.load_state_dict(state["past"])
        self._doubt.load_state_dict(state["doubt"])
        self._per_row, self._since, self._lessons, self._learnt, self._calm = saved["counts"]
        self._held, self._usual, self._next = saved["held"], saved["usual"], None


def _redescended(missed: float, limit: float) -> float:
    """Return the part of a miss that is believed: less the farther beyond the limit, nothing beyond twice the limit.

    Hampel's redescending function (JASA 1974).
    """
    # Continuous at the limit, because chance decides on which side of it a usual miss falls.
    return math.copysign(max(0.0, 2.0 * limit - abs(missed)), missed)


def whole(name: str, value: int, least: int, most: int = 10_000) -> int:
    """Return the value, or raise ``ConfigError`` if it is not an integer in the range."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ConfigError(f"{name} = {value!r} must be a whole number from {least} to {most}")
    return value
