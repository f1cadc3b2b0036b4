"""A threshold that adapts to a line's bandwidth limit.

Upwards this is the rule of Gaia's released code: above 1.1 of the limit, add 0.005 to the threshold; below 0.9,
subtract it, never below the configured threshold and by at most ``most``. Downwards it is Gaia's soft threshold, of
which only the purpose is known [recalled]: send more than the significant entries if there is room. Our rule: below 0.9
of the limit multiply by 0.9, above 1.1 divide. Entries above the configured threshold are then always sent.
"""

from __future__ import annotations

STEP, ABOVE, BELOW = 0.005, 1.1, 0.9
SOFTER = 0.9  # factor of the threshold if there is room


class BandwidthControl:
    """The adaptation of a threshold after each exchange.

    ``most`` is the maximum addition to it, ``soft`` its minimum factor (1 to never lower it).
    """

    def __init__(self, limit_bytes_per_s: float, most: float, soft: float = 1.0) -> None:
        self.added = 0.0  # to the threshold, at least 0
        self.part = 1.0  # factor of the threshold while nothing is added, at most 1
        self._limit = limit_bytes_per_s
        self._most = most
        self._soft = soft

    def measured(self, sent_bytes: float, passed_s: float) -> None:
        """Adapt to the bytes sent and the seconds passed since the start of the previous exchange."""
        usage = sent_bytes / passed_s if passed_s > 0 else 0.0
        if usage > ABOVE * self._limit:
            # Undo the opposite change first.
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
        """Return the threshold to use instead of the configured one."""
        return threshold * self.part + self.added
