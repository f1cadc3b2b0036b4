"""A threshold that follows one speaker's traffic to other sites, in a real run."""

from __future__ import annotations

import time
from dataclasses import replace

from uneven.policy.select import BandwidthControl, Selection, Significant


class LineThreshold:
    """A threshold that each speaker updates once in each exchange, by ``sent_bytes`` to other sites in the last one."""

    def __init__(self) -> None:
        self.control: BandwidthControl | None = None
        self.sent_bytes = 0.0
        self._since_s = 0.0  # start of the last exchange

    def within(self, select: Selection) -> Selection:
        """Return the selection with a threshold that keeps to its bandwidth, if it has any."""
        now_s = time.perf_counter()
        passed_s, self._since_s = now_s - self._since_s, now_s
        if not isinstance(select, Significant) or not select.mbit_per_s:
            return select
        if self.control is None:  # nothing has been sent yet
            self.control = select.control()
            return select
        self.control.measured(self.sent_bytes, passed_s)
        return replace(select, threshold=self.control.applied(select.threshold))
