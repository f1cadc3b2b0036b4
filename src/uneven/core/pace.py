"""Whom the workers of a run wait for. Pure."""

from __future__ import annotations

from enum import Enum

PACE = "pace"
"""Among the settings of a run record: the value of the :class:`Pace` at which this run's workers go."""


class Pace(Enum):
    """Whom a worker waits for, and so what sets its speed."""

    TOGETHER = "together"  # for all, whenever they meet: the slowest sets the pace
    GROUPS = "groups"  # for its group of the moment: a delay spreads from group to group
    QUORUM = "quorum"  # for the first so many; the rest is left behind
    BOUNDED = "bounded"  # for nobody until it leads by a bound
    OWN = "own"  # for nobody

    @property
    def waits(self) -> bool:
        """Whether anybody ever waits for others."""
        return self is not Pace.OWN

    @property
    def apart(self) -> bool:
        """Whether each worker takes steps of its own, so that the k-th steps of all are no iteration."""
        return self in (Pace.QUORUM, Pace.BOUNDED, Pace.OWN)
