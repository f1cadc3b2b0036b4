"""The cost of background exchanges to the training, and when it can afford the next one."""

from __future__ import annotations

import math

# A step is undisturbed if nothing was exchanged for half the quiet time before the last exchange, within these bounds.
# An exchange may cost time after its end: for example, a control group that has exceeded its share is stopped later.
_QUIET_S = 0.1, 2.0

PATIENCE_S = 300.0
"""Training time without an exchange after which there is one in any case. Steps may have become longer for good; then
most of the measured overhead is not caused by exchanges, and replicas would diverge for no reason."""

# Undisturbed steps before the first exchange. Every other exchange needs at least one before it, to keep the estimate
# current.
_KNOWN = 4

# EMA weight of the newest undisturbed step after many of them; before that, 3 in their number + 2. The first steps of a
# run are the longest: with equal weights, exchanges seemed to cost less than nothing.
_WEIGHT, _SOONER = 0.02, 3

# A step counts as at most this many undisturbed ones, because it may be long for other reasons.
_LONGEST = 10.0

# Seconds of training whose allowance may be saved; more would be spent in one burst.
_CREDIT_S = 1.0


class OverheadBudget:
    """The overhead of one worker's steps: how much longer than undisturbed ones they are, and how much that may be.

    It counts overhead of any origin: an exchange takes processors, caches and the interpreter's lock, and the kernel
    charges its work for arriving packets to the process that runs at that moment. With a spare processor it is near 0.
    """

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._usual_s = 0.0
        self._seen = 0  # undisturbed steps in the average
        self._undisturbed = -_KNOWN  # steps since the last exchange started
        self._lost_s = self._trained_s = 0.0
        self._quiet_s = 0.0
        self._asked_s = _QUIET_S[0]

    def stepped(self, took_s: float, quiet_s: float) -> None:
        """Count a step; before its end nothing was exchanged for ``quiet_s``."""
        counted_s = min(took_s, _LONGEST * self._usual_s) if self._seen else took_s
        self._trained_s += counted_s
        self._quiet_s = quiet_s
        # quiet_s is 0 only while all other workers exchange too: waiting for them costs nothing.
        if quiet_s < took_s + self._asked_s:
            self._lost_s += counted_s - self._usual_s if self._seen else 0.0
            return
        self._undisturbed += 1
        self._seen += 1
        weight = max(_WEIGHT, _SOONER / (self._seen + _SOONER - 1))  # 1 at first
        self._usual_s += weight * (counted_s - self._usual_s)

    def allows(self, load: float) -> bool:
        """Return whether an exchange may start if all of them together may cost this part of the time."""
        if self._trained_s >= self._patience_s:
            return True
        return self._undisturbed > 0 and self._lost_s <= load * self._trained_s

    def begin(self, load: float) -> None:
        self._lost_s = max(self._lost_s - load * self._trained_s, -load * _CREDIT_S)
        if self._trained_s >= self._patience_s:
            self._lost_s = 0.0
        self._trained_s = 0.0
        self._undisturbed = 0
        least_s, most_s = _QUIET_S
        before_s = self._quiet_s if math.isfinite(self._quiet_s) else 0.0
        self._asked_s = min(max(least_s, before_s / 2), most_s)
