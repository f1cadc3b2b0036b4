"""Each worker's word on its own speed. Pure."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from uneven.control.change import ChangeDetector
from uneven.core.views import Observation
from uneven.predict.base import Lesson, Predictor, study

_SAVED = 64.0
"""Iterations whose hidden time may be put together for one exchange."""

_ALONE_S, _TOGETHER_S = 0.04, 0.25
"""An iteration of the first length is an observation alone, shorter ones make one together that fills the second: a
quota deals a processor in periods of 20 to 100 ms, so a step of a few milliseconds meets full speed or a stop. Ours."""


class Forecast(NamedTuple):
    """What a worker tells the others of its speed to come.

    Attributes:
        predicted_per_s: samples per second in the next iteration; NaN if it cannot tell.
        doubt: relative standard error.
    """

    predicted_per_s: float
    doubt: float


class Forecaster:
    """Watches one worker, from inside it.

    A worker predicts itself: it sees each of its iterations and its machine as it is now, while the others only get
    a report now and then; and a prediction that is sent need not come out the same, to the last bit, on machines with
    other processors.

    Args:
        predictor: this worker's own.

    Attributes:
        hidden_s: so much of its own side of each exchange costs no time; see :attr:`Decider.hidden_s`.
    """

    def __init__(self, predictor: Predictor) -> None:
        self.hidden_s = self._spare_s = 0.0
        self._predictor = predictor
        self._detector = ChangeDetector()
        self._waiting, self._waiting_s = list[Observation](), 0.0  # iterations too short to be an observation alone
        self._count, self._short = 0, False  # observations; whether one of them was made of several iterations
        self._silent = False  # whether the newest report held no forecast: a worker calls when it has its first one

    @property
    def watches(self) -> bool:
        """Whether the predictor reads the use of processor and memory."""
        return self._predictor.watches

    @property
    def urgent(self) -> bool:
        """Whether its speed has left its last forecast, so that the others should hear of it soon."""
        return self._detector.changed

    @property
    def suspects_change(self) -> bool:
        """Whether the next iteration will tell if its speed has changed."""
        return self._detector.suspects_change

    def calls(self, iteration: int, soonest: int, far: int) -> bool:
        """Whether to call for reports in an iteration.

        Args:
            soonest: from which on one may, when what the last ones cost is paid for.
            far: the same for who is far off, and does not wait for that where reports are cheap.
        """
        return (self._detector.changed_much and iteration >= far) or (self._detector.changed and iteration >= soonest)

    def observe(self, seen: Observation) -> None:
        """One iteration, or several at once."""
        if self.hidden_s > 0.0:  # for each iteration, though the exchange may be in one of many
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
            self._detector.changed |= self._silent
        self._predictor.observe(seen)
        self._detector.hear(seen.speed_per_s)

    def tell(self) -> Forecast:
        """The forecast that goes into a report; from now on its speed is held against it."""
        doubt = self._predictor.doubt()
        if self._short:  # the first few tell little of their own spread
            doubt = math.hypot(doubt, 1.0 / self._count)
        forecast = Forecast(self._predictor.predict(), doubt)
        self._detector.expect(forecast.predicted_per_s)
        self._silent = math.isnan(forecast.predicted_per_s)
        return forecast

    def lesson(self) -> Lesson | None:
        """Training of the predictor that is due, to be worked off wherever there is time; see :class:`Predictor`."""
        return self._predictor.lesson()

    def absorb(self, learnt: Any) -> None:
        """What a lesson has learnt."""
        self._predictor.absorb(learnt)

    def study(self) -> None:
        """Learn at once whatever is due, where there is no background."""
        study(self._predictor)

    def state_dict(self) -> dict[str, Any]:
        """What the predictor has learnt, as plain JSON-able data."""
        return self._predictor.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._predictor.load_state_dict(state)
        self._count = 100  # the predictor is not new: its doubt counts alone


def _together(short: list[Observation]) -> Observation:
    """An iteration of the newest size, at the speed of all of these."""
    part = short[-1].samples / sum(one.samples for one in short)
    local_s, transfer_s = sum(one.local_s for one in short), sum(one.transfer_s for one in short)
    return short[-1]._replace(local_s=part * local_s, transfer_s=part * transfer_s)
