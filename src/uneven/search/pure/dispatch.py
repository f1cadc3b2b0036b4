"""Decide which trial trains next and where: the core chooses the trial, the placer its devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from uneven.search.pure.core import SearchCore
from uneven.search.pure.placing import Placer
from uneven.search.pure.trial_records import TrialRecord

Running = Mapping[int, tuple[int, ...]]  # trial → its devices
Left = Callable[[int], float]  # trial → estimated seconds until it is done


@dataclass(slots=True)
class Dispatch:
    """The assignment of trials to devices."""

    core: SearchCore
    placer: Placer
    devices: int  # number of devices
    held: list[TrialRecord] = field(default_factory=list)  # trials that the core has started and that wait for a device

    def starts(
        self, running: Running, left_s: Left, unsettled: Callable[[TrialRecord], bool]
    ) -> Iterator[tuple[TrialRecord, tuple[int, ...]]]:
        """Yield the trials that start now, with their devices.

        At most one trial is held for each busy device, and only for a faster one. `unsettled` returns whether the state
        that a trial starts with is still being written.
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
            # Held trials count too, because they will need devices soon.
            others = here | {other.number for other in (*waiting, *self.held)}
            devices = self.placer.devices_for(one.number, free, busy_s, share=self._share(one.number, others))
            if not free.keys() >= set(devices):
                for device in devices:
                    del busy_s[device]  # reserved for this trial, so no other may wait for it
                self.held.append(one)
                continue
            here.add(one.number)
            for device in devices:
                del free[device]
            yield one, devices
        self.held += waiting

    def goes_on(self, trial: int, running: Running, left_s: Left) -> tuple[int, ...]:
        """Return the devices on which a trial continues after a report; it waits if another trial has them."""
        here = running[trial]
        # Waiting trials come first: this one takes no other device while one waits.
        if len(here) == 1 and (self.held or self.core.starts_more):
            return here
        busy_s = self._busy_s({other: devices for other, devices in running.items() if other != trial}, left_s)
        others = {*running, *(one.number for one in self.held)} - {trial}
        return self.placer.devices_for(trial, self._free(running), busy_s, here, self._share(trial, others))

    def _share(self, trial: int, others: set[int]) -> int:
        """Return how many devices a trial should have; several only if no other trial would start on them."""
        if not self.placer.shares_out or self.core.starts_more:
            return 1
        return self.placer.share(trial, others, self.devices)

    def _free(self, running: Running) -> dict[int, None]:
        taken = {device for devices in running.values() for device in devices}
        return {device: None for device in range(self.devices) if device not in taken}

    def _busy_s(self, running: Running, left_s: Left) -> dict[int, float]:
        """Return the seconds until each busy device is free."""
        # The estimates cost more than all else here, so they are only made if the placer uses them.
        if not self.placer.looks:
            return {}
        return {device: left_s(trial) for trial, devices in running.items() for device in devices}
