"""What exchanges beside the training cost it, and when it can afford the next one. Pure."""

from __future__ import annotations

import math

_QUIET_S = 0.1, 2.0
"""A step is undisturbed if nothing was exchanged for so long before it: half as long as it was quiet before the last
exchange, within these two. What an exchange takes may be paid for after its end: a control group that has used more
than its share is stopped later, for instance."""

PATIENCE_S = 300.0
"""After so much training without an exchange there is one. A step may have become longer for good, or what is known of
them may be wrong; then most of what seems to be lost is not, and replicas would part for no reason."""

_KNOWN = 4
"""Undisturbed steps before the first exchange; and one at least before every other one, so that what is known of them
stays true."""

_WEIGHT, _SOONER = 0.02, 3
"""Weight of the newest undisturbed step in what is known of them, once there were many; before, three in so many. The
first steps of a run are the longest: where they counted alike, exchanges seemed to cost less than nothing."""

_LONGEST = 10.0
"""A step counts as so many undisturbed ones at most: it may have been longer for many a reason."""

_CREDIT_S = 1.0
"""Seconds of training whose allowance may be saved up; more would be spent all at once."""


class OverheadBudget:
    """Accounts for one worker's steps: how much longer they were than undisturbed ones, and what that may be.

    That is counted whatever the reason: an exchange takes processors, memory, caches and the interpreter's lock, and
    the kernel charges what it does for packets that arrive to whoever runs at that moment. So on a worker that has a
    processor to spare exchanges cost nothing, and follow each other nearly without a pause.

    Args:
        patience_s: of training without an exchange, after which there is one whatever it costs.
    """

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._usual_s = 0.0
        self._seen = 0  # undisturbed steps in that; before the first one nothing is usual
        self._undisturbed = -_KNOWN  # steps, since the last exchange was begun
        self._lost_s = self._trained_s = 0.0
        self._quiet_s, self._asked_s = 0.0, _QUIET_S[0]

    def stepped(self, took_s: float, quiet_s: float) -> None:
        """A step of the training is over.

        Args:
            quiet_s: for how long before its end nothing has been exchanged: 0 while an exchange is under way that all
                others have begun, too. To wait for these costs nothing: steps beside that tell what is usual.
        """
        counted_s = min(took_s, _LONGEST * self._usual_s) if self._seen else took_s
        self._trained_s += counted_s
        self._quiet_s = quiet_s
        if quiet_s < took_s + self._asked_s:
            self._lost_s += counted_s - self._usual_s if self._seen else 0.0
            return
        self._undisturbed += 1
        self._seen += 1
        weight = max(_WEIGHT, _SOONER / (self._seen + _SOONER - 1))  # 1 at first
        self._usual_s += weight * (counted_s - self._usual_s)

    def allows(self, load: float) -> bool:
        """Whether an exchange may begin, where all of them together may cost this part of the time."""
        if self._trained_s >= self._patience_s:
            return True
        return self._undisturbed > 0 and self._lost_s <= load * self._trained_s

    def begin(self, load: float) -> None:
        """An exchange begins."""
        self._lost_s = max(self._lost_s - load * self._trained_s, -load * _CREDIT_S)
        if self._trained_s >= self._patience_s:
            self._lost_s = 0.0
        self._trained_s = 0.0
        self._undisturbed = 0
        least_s, most_s = _QUIET_S
        before_s = self._quiet_s if math.isfinite(self._quiet_s) else 0.0
        self._asked_s = min(max(least_s, before_s / 2), most_s)
