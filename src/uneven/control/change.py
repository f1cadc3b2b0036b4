"""Has this worker's speed changed for good? Pure."""

from __future__ import annotations

import math

_CLIP = 3.0  # standard deviations; a lone spike counts as this much and no more
_SLACK = 0.5  # standard deviations that an iteration may be off without counting as a sign of change
_CHANGE = 4.9  # sum of signs that is a change: two clipped iterations in a row, 2 · (3 − 0.5) > 4.9, but not one
_WEIGHT = 0.05  # of the newest iteration in the usual deviation
_FIRST_SPREAD = 0.1  # relative; assumed before anything is known
_LEAST_SPREAD = 0.02  # relative; less than this is not worth a word to the others
_FAR = 0.25  # relative; shares that are off by as much lose more in one iteration than some reports cost …
_FAR_SPREADS = 2.0  # … where it is no noise: twice in a row to the same side, by chance once in a thousand iterations
_NORMAL = 1.2533  # standard deviation over mean absolute deviation, of a normal distribution


class ChangeDetector:
    """A two-sided CUSUM test (Page, 1954) over how far each iteration's time is from what was foretold (ours).

    A lone spike, however large, does not set it off; two in a row do, and so does a lasting change of the size of the
    usual noise after about a dozen iterations. With no change at all it goes off about once in 400 iterations, which
    costs a report.

    Attributes:
        changed: whether the speed has.
        changed_much: whether by a quarter at least: twice in a row to the same side, beyond the usual noise.
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
        """Whether it was far off once, so that the next iteration will tell."""
        return self._far != 0 and not self.changed_much

    def expect(self, speed_per_s: float) -> None:
        """This speed was foretold to the others; what follows is held against it, from a fresh start."""
        self._expected_s = 1.0 / speed_per_s if 0.0 < speed_per_s < math.inf else math.nan
        self._slower = self._faster = 0.0
        self.changed = self.changed_much = False
        self._far = 0 if math.isnan(self._expected_s) else self._side(self._newest_s / self._expected_s - 1.0)

    def hear(self, speed_per_s: float) -> None:
        """The speed of one iteration; what is no speed says nothing."""
        if not (0.0 < speed_per_s < math.inf) or math.isnan(self._expected_s):
            return
        self._newest_s = 1.0 / speed_per_s
        strayed = self._newest_s / self._expected_s - 1.0
        sign = max(-_CLIP, min(_CLIP, strayed / self._spread))
        if not self.changed:  # a change is no noise
            usual = _NORMAL * abs(sign) * self._spread
            self._spread = max(_LEAST_SPREAD, self._spread + _WEIGHT * (usual - self._spread))
        self._slower = max(0.0, self._slower + sign - _SLACK)
        self._faster = max(0.0, self._faster - sign - _SLACK)
        self.changed = self.changed or max(self._slower, self._faster) > _CHANGE
        side = self._side(strayed)
        self._far = side + self._far * (side * self._far > 0)
        self.changed_much = self.changed_much or abs(self._far) >= 2

    def _side(self, strayed: float) -> int:
        """1 if an iteration was far too slow, -1 if it was far too fast, else 0."""
        return (strayed > 0) - (strayed < 0) if abs(strayed) >= max(_FAR, _FAR_SPREADS * self._spread) else 0
