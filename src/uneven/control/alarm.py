"""Has this worker's speed changed for good? Pure."""

from __future__ import annotations

import math

_CLIP = 3.0  # standard deviations; a lone spike counts as this much and no more
_SLACK = 0.5  # standard deviations that an iteration may be off without counting as a sign of change
_ALARM = 4.9  # sum of signs that is a change: two clipped iterations in a row, 2 · (3 − 0.5) > 4.9, but not one
_WEIGHT = 0.05  # of the newest iteration in the usual deviation
_FIRST_SPREAD = 0.1  # relative; assumed before anything is known
_LEAST_SPREAD = 0.02  # relative; less than this is not worth a word to the others
_NORMAL = 1.2533  # standard deviation over mean absolute deviation, of a normal distribution


class Alarm:
    """A two-sided CUSUM test (Page, 1954) over how far each iteration's time is from what was foretold (ours).

    A lone spike, however large, does not set it off; two in a row do, and so does a lasting change of the size of the
    usual noise after about a dozen iterations. With no change at all it goes off about once in 400 iterations, which
    costs a report.
    """

    def __init__(self) -> None:
        self._expected_s = math.nan  # seconds per sample
        self._spread = _FIRST_SPREAD
        self._slower = 0.0
        self._faster = 0.0
        self.on = False

    def expect(self, speed_per_s: float) -> None:
        """This speed was foretold to the others; what follows is held against it, from a fresh start."""
        self._expected_s = 1.0 / speed_per_s if 0.0 < speed_per_s < math.inf else math.nan
        self._slower = self._faster = 0.0
        self.on = False

    def hear(self, speed_per_s: float) -> None:
        """The speed of one iteration; what is no speed says nothing."""
        if not (0.0 < speed_per_s < math.inf) or math.isnan(self._expected_s):
            return
        strayed = 1.0 / (speed_per_s * self._expected_s) - 1.0
        sign = max(-_CLIP, min(_CLIP, strayed / self._spread))
        if not self.on:  # a change is no noise
            usual = _NORMAL * abs(sign) * self._spread
            self._spread = max(_LEAST_SPREAD, self._spread + _WEIGHT * (usual - self._spread))
        self._slower = max(0.0, self._slower + sign - _SLACK)
        self._faster = max(0.0, self._faster - sign - _SLACK)
        self.on = self.on or max(self._slower, self._faster) > _ALARM
