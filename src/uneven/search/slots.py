"""Track which trial is in which process of the pool."""

from __future__ import annotations

from dataclasses import dataclass, field

from uneven.fleet.member.team import Seat
from uneven.runtime.jobs.executor import Linked


@dataclass(slots=True)
class Slot:
    """A device, its process, and the trial in it."""

    device: int
    process: Linked
    trial: int | None = None  # None if it is free
    rank: int = 0  # of this process within its trial; rank 0 reports
    size: int = 1  # number of processes of its trial
    leaving: bool = False  # it was sent a decision to leave its trial, and may be saving its state
    spoke: bool = False  # a message from it has arrived

    def begins(self, trial: int, seat: Seat) -> None:
        self.trial, self.rank, self.size, self.leaving = trial, seat.rank, seat.size, False

    def is_left(self) -> int | None:
        trial, self.trial, self.leaving = self.trial, None, False
        return trial


@dataclass(slots=True)
class DeviceSlots:
    all: list[Slot] = field(default_factory=list)

    def of(self, process: Linked) -> Slot | None:
        """Return the slot of a process; None if it was given up."""
        return next((one for one in self.all if one.process is process), None)

    def at(self, device: int) -> Slot | None:
        return next((one for one in self.all if one.device == device), None)

    def team(self, trial: int) -> list[Slot]:
        return sorted((one for one in self.all if one.trial == trial), key=lambda one: one.rank)

    def devices_of(self, trial: int) -> tuple[int, ...]:
        return tuple(one.device for one in self.team(trial))

    @property
    def running(self) -> dict[int, tuple[int, ...]]:
        return {one.trial: self.devices_of(one.trial) for one in self.all if one.trial is not None}

    def leaving(self, *trials: int | None) -> bool:
        """Return whether a process may still be saving the state of one of these trials."""
        return any(one.leaving and one.trial in trials for one in self.all)
