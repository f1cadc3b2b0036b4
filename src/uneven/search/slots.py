"""Which trial is in which process: the book of the pool."""

from __future__ import annotations

from dataclasses import dataclass, field

from uneven.fleet.member.team import Seat
from uneven.jobs.place import Linked


@dataclass(slots=True)
class Slot:
    """A device, its process, and the trial in it.

    Attributes:
        trial: None if it is free.
        rank, size: of this process among those of its trial; the first one reports.
        leaving: it has been told to leave its trial, and may be keeping its state.
        spoke: something was heard of it.
    """

    device: int
    process: Linked
    trial: int | None = None
    rank: int = 0
    size: int = 1
    leaving: bool = False
    spoke: bool = False

    def begins(self, trial: int, seat: Seat) -> None:
        """A trial comes."""
        self.trial, self.rank, self.size, self.leaving = trial, seat.rank, seat.size, False

    def is_left(self) -> int | None:
        """The trial goes; which one it was."""
        trial, self.trial, self.leaving = self.trial, None, False
        return trial


@dataclass(slots=True)
class DeviceSlots:
    """All that have a process."""

    all: list[Slot] = field(default_factory=list)

    def of(self, process: Linked) -> Slot | None:
        """The one whose process this is; None of one that has been given up."""
        return next((one for one in self.all if one.process is process), None)

    def at(self, device: int) -> Slot | None:
        """The one of a device, if it has a process."""
        return next((one for one in self.all if one.device == device), None)

    def team(self, trial: int) -> list[Slot]:
        """Those in which a trial is, by rank."""
        return sorted((one for one in self.all if one.trial == trial), key=lambda one: one.rank)

    def devices_of(self, trial: int) -> tuple[int, ...]:
        """Their devices."""
        return tuple(one.device for one in self.team(trial))

    @property
    def running(self) -> dict[int, tuple[int, ...]]:
        """Trial → its devices."""
        return {one.trial: self.devices_of(one.trial) for one in self.all if one.trial is not None}

    def leaving(self, *trials: int | None) -> bool:
        """Whether a process may still be keeping the state of one of them."""
        return any(one.leaving and one.trial in trials for one in self.all)
