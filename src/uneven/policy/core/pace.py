"""The waiting rules between the workers of a run."""

from enum import Enum

PACE = "pace"  # the key, among the settings of a run record, of the value of the run's :class:`Pace`


class Pace(Enum):
    """The workers that a worker waits for, which determine its speed."""

    TOGETHER = "together"  #: for all, at each exchange: the slowest sets the pace
    GROUPS = "groups"  #: for its current group: a delay spreads from group to group
    QUORUM = "quorum"  #: for the first N; later ones are dropped
    BOUNDED = "bounded"  #: for no worker until its lead reaches a bound
    OWN = "own"  #: for no worker

    @property
    def waits(self) -> bool:
        """True if a worker may wait for another one."""
        return self is not Pace.OWN

    @property
    def apart(self) -> bool:
        """True if workers count steps independently, so the k-th steps of all are not one iteration."""
        return self in (Pace.QUORUM, Pace.BOUNDED, Pace.OWN)
