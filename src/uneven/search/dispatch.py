"""Who trains where next: the core says who, the placer where; the same for real devices and for virtual ones. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from uneven.search.core import SearchCore
from uneven.search.placing import Placer
from uneven.search.records import TrialRecord

Running = Mapping[int, tuple[int, ...]]
"""Trial → its devices."""
Left = Callable[[int], float]
"""Trial → seconds until it is done, as far as one can tell."""


@dataclass(slots=True)
class Dispatch:
    """See the module.

    Attributes:
        devices: how many there are.
        held: trials that run by the core's word and wait for a device.
    """

    core: SearchCore
    placer: Placer
    devices: int
    held: list[TrialRecord] = field(default_factory=list)

    def starts(
        self, running: Running, left_s: Left, unsettled: Callable[[TrialRecord], bool]
    ) -> Iterator[tuple[TrialRecord, tuple[int, ...]]]:
        """Who begins now, and where. At most one trial is held for each busy device, and only for a faster one.

        Args:
            unsettled: whether the state that a trial begins with is still being kept.
        """
        free, busy_s = self._free(running), self._busy_s(running, left_s)
        waiting, self.held = self.held, []
        here = set(running)
        while free:
            one = waiting.pop(0) if waiting else self.core.start()
            if one is None:
                break
            if unsettled(one):
                self.held.append(one)
                continue
            others = here | {other.number for other in (*waiting, *self.held)}
            devices = self.placer.devices_for(one.number, free, busy_s, share=self._share(one.number, others))
            if not free.keys() >= set(devices):
                for device in devices:
                    del busy_s[device]  # it is spoken for
                self.held.append(one)
                continue
            here.add(one.number)
            for device in devices:
                del free[device]
            yield one, devices
        self.held += waiting

    def goes_on(self, trial: int, running: Running, left_s: Left) -> tuple[int, ...]:
        """Where a trial goes on that has reported; devices of others: it waits for them.

        Who waits goes before who would be faster.
        """
        here = running[trial]
        if len(here) == 1 and (self.held or self.core.starts_more):
            return here
        busy_s = self._busy_s({other: devices for other, devices in running.items() if other != trial}, left_s)
        others = {*running, *(one.number for one in self.held)} - {trial}
        return self.placer.devices_for(trial, self._free(running), busy_s, here, self._share(trial, others))

    def _share(self, trial: int, others: set[int]) -> int:
        """Several devices are for when nobody would be started on them."""
        if not self.placer.shares_out or self.core.starts_more:
            return 1
        return self.placer.share(trial, others, self.devices)

    def _free(self, running: Running) -> dict[int, None]:
        taken = {device for devices in running.values() for device in devices}
        return {device: None for device in range(self.devices) if device not in taken}

    def _busy_s(self, running: Running, left_s: Left) -> dict[int, float]:
        """Device → seconds until it is free; looking costs more than all else here, so only if it matters."""
        if not self.placer.looks:
            return {}
        return {device: left_s(trial) for trial, devices in running.items() for device in devices}
