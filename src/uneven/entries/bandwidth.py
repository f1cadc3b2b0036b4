"""A threshold that keeps a line within its bandwidth. Pure.

This is the rule of Gaia's released code: above 1.1 of the limit the threshold goes up by 0.005, below 0.9 down, never
below the one that was asked for and never by more than ``most``.
"""

from __future__ import annotations

STEP, ABOVE, BELOW = 0.005, 1.1, 0.9


class BandwidthControl:
    """What is added to a threshold, after each exchange anew.

    Args:
        limit_bytes_per_s: that a worker may send to other sites.
        most: that is added.

    Attributes:
        added: to the threshold.
    """

    def __init__(self, limit_bytes_per_s: float, most: float) -> None:
        self.added = 0.0
        self._limit = limit_bytes_per_s
        self._most = most

    def measured(self, sent_bytes: float, passed_s: float) -> float:
        """So many bytes were sent in so many seconds, from the beginning of one exchange to that of the next."""
        usage = sent_bytes / passed_s if passed_s > 0 else 0.0
        if usage > ABOVE * self._limit:
            self.added += STEP
        elif usage < BELOW * self._limit:
            self.added -= STEP
        self.added = min(self._most, max(0.0, self.added))
        return self.added
