"""A threshold that keeps a line within its bandwidth, and may use what is left of it. Pure.

Upwards this is the rule of Gaia's released code: above 1.1 of the limit 0.005 is added to the threshold, below 0.9 it
is taken away, never below the one that was asked for and never by more than ``most``. Downwards it is Gaia's soft
threshold, of which the specification [recalled] says what it is for, that more than is significant travels where the
line has room, and not by which rule: below 0.9 of the limit the threshold is multiplied by 0.9, above 1.1 divided
(ours). What passes the threshold that was asked for travels in any case then.
"""

from __future__ import annotations

STEP, ABOVE, BELOW = 0.005, 1.1, 0.9
SOFTER = 0.9
"""What the threshold is multiplied by where there is room."""


class BandwidthControl:
    """What becomes of a threshold, after each exchange anew.

    Args:
        limit_bytes_per_s: that a worker may send to other sites.
        most: that is added.
        soft: the part of the threshold to which it goes down; 1 is not at all.

    Attributes:
        added: to the threshold, at least 0.
        part: of the threshold, where nothing is added; at most 1.
    """

    def __init__(self, limit_bytes_per_s: float, most: float, soft: float = 1.0) -> None:
        self.added, self.part = 0.0, 1.0
        self._limit = limit_bytes_per_s
        self._most = most
        self._soft = soft

    def measured(self, sent_bytes: float, passed_s: float) -> None:
        """So many bytes were sent in so many seconds, from the beginning of one exchange to that of the next."""
        usage = sent_bytes / passed_s if passed_s > 0 else 0.0
        if usage > ABOVE * self._limit:
            if self.part < 1.0:
                self.part = min(1.0, self.part / SOFTER)
            else:
                self.added = min(self._most, self.added + STEP)
        elif usage < BELOW * self._limit:
            if self.added > 0.0:
                self.added = max(0.0, self.added - STEP)
            else:
                self.part = max(self._soft, self.part * SOFTER)

    def applied(self, threshold: float) -> float:
        """The threshold to take in the place of one that was asked for."""
        return threshold * self.part + self.added
