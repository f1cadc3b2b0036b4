"""A detector of lasting changes of a worker's speed."""

from __future__ import annotations

import math

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

    A lone spike, however large, does not trigger it; two in a row do, and so does a lasting change of the size of the
    usual noise after about a dozen iterations. Without a change it triggers about once in 400 iterations, which costs a
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
