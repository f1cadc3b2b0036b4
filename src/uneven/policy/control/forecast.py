"""A worker's forecast of its speed."""

import math
from typing import Any, NamedTuple

from uneven.policy.core.views import Observation
from uneven.policy.predict.predictor import Lesson, Predictor, study

_CLIP = 3.0  # standard deviations: limit of a lone spike
_SLACK = 0.5  # standard deviations that an iteration may be off without counting as a sign of change
_CHANGE = 4.9  # sum of signs that is a change: two clipped iterations in a row, 2 · (3 − 0.5) > 4.9, but not one
_WEIGHT = 0.05  # of the newest iteration in the usual deviation
_FIRST_SPREAD = 0.1  # relative; assumed before anything is known
_LEAST_SPREAD = 0.02  # relative; less is not worth a report
_FAR = 0.25  # relative; shares that are off by as much lose more in one iteration than some reports cost …
_FAR_SPREADS = 2.0  # … if it is not noise: twice in a row to the same side, by chance once in a thousand iterations
_NORMAL = 1.2533  # standard deviation over mean absolute deviation, of a normal distribution


class ChangeDetector:
    """A two-sided CUSUM test (Page, 1954) over the difference between each iteration's time and its forecast (ours).

    A lone spike, however large, does not trigger it; two in a row do. A lasting change of the size of the usual noise
    triggers it after about a dozen iterations. Without a change it triggers about once in 400 iterations, which costs a
    report.

    Attributes:
        changed: whether the speed has changed.
        changed_much: whether by at least a quarter: twice in a row to the same side, beyond the usual noise.
    """

    def __init__(self) -> None:
        self._expected_s = math.nan  # seconds per sample
        self._spread = _FIRST_SPREAD
        self._slower = 0.0
        self._faster = 0.0
        self._newest_s = math.nan  # seconds per sample
        self._far = 0  # iterations in a row that were far off, below zero if they were fast
        self.changed = self.changed_much = False

    @property
    def suspects_change(self) -> bool:
        """True after one iteration that was far off, so that the next one decides."""
        return self._far != 0 and not self.changed_much

    def expect(self, speed_per_s: float) -> None:
        """Restart the test with the speed that was forecast to the other workers."""
        self._expected_s = 1.0 / speed_per_s if 0.0 < speed_per_s < math.inf else math.nan
        self._slower = self._faster = 0.0
        self.changed = self.changed_much = False
        # The newest iteration may already be far off the new forecast.
        self._far = 0 if math.isnan(self._expected_s) else self._side(self._newest_s / self._expected_s - 1.0)

    def hear(self, speed_per_s: float) -> None:
        """Test the speed of one iteration; a value that is not a speed is ignored."""
        if not (0.0 < speed_per_s < math.inf) or math.isnan(self._expected_s):
            return
        self._newest_s = 1.0 / speed_per_s
        strayed = self._newest_s / self._expected_s - 1.0
        sign = max(-_CLIP, min(_CLIP, strayed / self._spread))
        if not self.changed:  # a change must not count as noise
            usual = _NORMAL * abs(sign) * self._spread
            self._spread = max(_LEAST_SPREAD, self._spread + _WEIGHT * (usual - self._spread))
        self._slower = max(0.0, self._slower + sign - _SLACK)
        self._faster = max(0.0, self._faster - sign - _SLACK)
        self.changed = self.changed or max(self._slower, self._faster) > _CHANGE
        side = self._side(strayed)
        self._far = side + self._far * (side * self._far > 0)
        self.changed_much = self.changed_much or abs(self._far) >= 2

    def _side(self, strayed: float) -> int:
        # 1 if an iteration was far too slow, -1 if it was far too fast, otherwise 0.
        return (strayed > 0) - (strayed < 0) if abs(strayed) >= max(_FAR, _FAR_SPREADS * self._spread) else 0


_SAVED = 64.0  # iterations whose hidden time may accumulate for one exchange

# An iteration of the first length is one observation; shorter ones are merged until they fill the second. A quota
# grants a processor in periods of 20 to 100 ms. So a step of a few ms runs at full speed or not at all [default].
_ALONE_S, _TOGETHER_S = 0.04, 0.25


class Forecast(NamedTuple):
    """A worker's report of its expected speed."""

    predicted_per_s: float  # samples per second in the next iteration; NaN if unknown
    doubt: float  # relative standard error


class Forecaster:
    """One worker's forecast of itself.

    A worker predicts itself because it sees each of its iterations and the current state of its machine, while the
    others get an occasional report. A prediction that is sent also need not be bit-identical on different processors.
    """

    def __init__(self, predictor: Predictor) -> None:
        self.hidden_s = self._spare_s = 0.0  # of its own side of each exchange; see Decider.hidden_s
        self._predictor = predictor
        self._detector = ChangeDetector()
        self._waiting = list[Observation]()  # iterations too short to be an observation each
        self._waiting_s = 0.0
        self._count = 0  # observations
        self._short = False  # whether one of them was merged from several iterations
        self._silent = False  # whether the newest report had no forecast: a worker calls when it has its first one

    @property
    def watches(self) -> bool:
        return self._predictor.watches

    @property
    def urgent(self) -> bool:
        """True if the speed has left the last forecast, so that the others should get a report soon."""
        return self._detector.changed

    @property
    def suspects_change(self) -> bool:
        """True if the next iteration decides whether the speed has changed."""
        return self._detector.suspects_change

    def calls(self, iteration: int, soonest: int, far: int) -> bool:
        """Return whether to call for reports: from ``soonest`` on, or from ``far`` on if the speed is far off."""
        return (self._detector.changed_much and iteration >= far) or (self._detector.changed and iteration >= soonest)

    def observe(self, seen: Observation) -> None:
        """Observe one iteration, or several together."""
        if self.hidden_s > 0.0:  # accumulates per iteration, although only some iterations have an exchange
            self._spare_s = min(self._spare_s + self.hidden_s * seen.iterations, _SAVED * self.hidden_s)
            hidden_s = min(self._spare_s, seen.transfer_s)
            self._spare_s -= hidden_s
            seen = seen._replace(transfer_s=seen.transfer_s - hidden_s)
        if seen.samples > 0:
            lasts_s = seen.local_s + seen.exchange_s
            self._waiting.append(seen)
            self._waiting_s += lasts_s
            if lasts_s < _ALONE_S and self._waiting_s < _TOGETHER_S:
                return
            if len(self._waiting) > 1:
                self._short, seen = True, _together(self._waiting)
            self._waiting, self._waiting_s = [], 0.0
            self._count += 1
            # Other workers have no forecast of this one yet: its first one is worth a call.
            self._detector.changed |= self._silent
        self._predictor.observe(seen)
        self._detector.hear(seen.speed_per_s)

    def tell(self) -> Forecast:
        """Return the forecast for a report and test the speed against it from now on."""
        doubt = self._predictor.doubt()
        if self._short:  # a few merged observations do not show their spread yet
            doubt = math.hypot(doubt, 1.0 / self._count)
        forecast = Forecast(self._predictor.predict(), doubt)
        self._detector.expect(forecast.predicted_per_s)
        self._silent = math.isnan(forecast.predicted_per_s)
        return forecast

    def lesson(self) -> Lesson | None:
        return self._predictor.lesson()

    def absorb(self, learnt: Any) -> None:
        self._predictor.absorb(learnt)

    def study(self) -> None:
        study(self._predictor)

    def state_dict(self) -> dict[str, Any]:
        return self._predictor.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._predictor.load_state_dict(state)
        self._count = 100  # the predictor is not new, so only its own doubt counts


def _together(short: list[Observation]) -> Observation:
    # An iteration of the newest size, at the mean speed of all.
    part = short[-1].samples / sum(one.samples for one in short)
    local_s, transfer_s = sum(one.local_s for one in short), sum(one.transfer_s for one in short)
    return short[-1]._replace(local_s=part * local_s, transfer_s=part * transfer_s)
