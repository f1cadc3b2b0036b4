"""Choose devices for trials if some are faster than others, or if there are more devices than trials.

A waiting trial gets the fastest free device. At a report, if no other trial waits, a trial moves to a faster free
device, because a pause costs little. If a faster one will soon be free, and the next report comes sooner there, the
trial waits for it. If trials may have several devices, devices that no trial waits for are shared out by a plan.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial

from uneven.errors import ConfigError
from uneven.fleet.pure.planning.allocate import Closeness, create_flotilla
from uneven.fleet.pure.planning.rates import Rates
from uneven.search.pure.core import SearchCore
from uneven.search.pure.paces import Paces
from uneven.search.pure.trial_records import TrialRecord

Placement = tuple[tuple[str, int], ...]
"""The trials in the order in which they were chosen, and their numbers of devices."""

Plan = Callable[[Sequence[str], Rates, int], Placement]
"""Waiting trials, samples/s of each on 1, 2, … devices, and the number of free devices → running trials."""


# δ as a share of the fastest rate: any rate fits. Shared samples stay in a cache, so no trial slows another down.
ANY_PACE = 1.0


def one_each(candidates: Sequence[str], rates: Rates, devices: int) -> Placement:
    """Return the first candidates with one device each. Raises `ConfigError` if ``devices`` is negative."""
    if devices < 0:
        raise ConfigError(f"{devices} devices: give 0 or more")
    return tuple((name, 1) for name in candidates[:devices])


def flotilla(candidates: Sequence[str], rates: Rates, devices: int, *, closeness: Closeness | None = None) -> Placement:
    """Return a group of trials of nearly equal speed, each with the number of devices for it: FLEET's Algorithm 2.

    Raises `ConfigError` if ``devices`` is negative or a trial waits twice, and `UnknownNameError` if one has no rates.
    """
    return tuple(create_flotilla(rates, candidates, devices, closeness=closeness).members.items())


def flotilla_of_all(candidates: Sequence[str], rates: Rates, devices: int, *, least_gain: float = 0.0) -> Placement:
    """Return a group in which every trial has a device, or the first candidates if there are more trials than devices.

    A left-over device is used only if a trial gets faster by at least the share `least_gain`. Raises as
    :func:`flotilla`.
    """
    rule = Closeness(delta_share=ANY_PACE, least_gain=least_gain)
    alone: list[str] = []
    while True:
        # A trial for which too few devices are left keeps one, and the other trials share the rest.
        others = [name for name in candidates[:devices] if name not in alone]
        placed = flotilla(others, rates, devices - len(alone), closeness=rule) if others else ()
        left_out = [name for name in others if name not in dict(placed)]
        if not left_out:
            return (*placed, *((name, 1) for name in alone))
        alone += left_out


LEAST_GAIN = 0.15  # least gain for a move, because the trial has to load its checkpoint there


class Placing(Enum):
    """The rule for giving out devices."""

    FIRST_COME = "first-come"
    """The next trial gets the free device with the lowest number, and keeps it."""
    PLANNED = "planned"
    """One device per trial, chosen by speed; see the module."""
    FLOTILLAS = "flotillas"
    """As planned, and devices that no trial waits for help running trials, by FLEET's rule."""


PLANS: Mapping[Placing, Plan] = {
    Placing.FIRST_COME: one_each,
    Placing.PLANNED: one_each,
    Placing.FLOTILLAS: partial(flotilla_of_all, least_gain=LEAST_GAIN),
}


def placing_named(name: str) -> Placing:
    """Return the rule of this name. Raises `ConfigError` if there is none."""
    known = [one.value for one in Placing]
    if name not in known:
        raise ConfigError(f"placing={name!r}: give one of {', '.join(known)}")
    return Placing(name)


@dataclass(slots=True)
class Placer:
    """The choice of devices for trials."""

    kind: Placing = Placing.PLANNED
    paces: Paces = field(default_factory=Paces)  # the measurements
    moves: int = 0  # how often a trial was moved, or made to wait for a faster device
    alone: set[int] = field(default_factory=set)  # trials that cannot be trained on several devices

    @property
    def looks(self) -> bool:
        return self.kind is not Placing.FIRST_COME

    @property
    def shares_out(self) -> bool:
        return self.kind is Placing.FLOTILLAS

    def share(self, trial: int, others: Collection[int], devices: int) -> int:
        """Return how many of `devices` devices a trial should have; one while more trials wait than there are devices.

        `others` are the other trials that run or could start now.
        """
        if not self.shares_out or trial in self.alone or len(others) + 1 >= devices:
            return 1
        each = sorted(range(devices), key=lambda device: self.paces.unit_s(trial, device))
        rates = {str(one): self._per_s(one, each) for one in (trial, *others)}
        return dict(PLANS[self.kind](tuple(rates), Rates(rates), devices))[str(trial)]

    def _per_s(self, trial: int, devices: Sequence[int]) -> list[float]:
        # A trial is measured on one device before it gets several, because a plan needs its rate.
        most = len(devices) if self.paces.knows(trial) and trial not in self.alone else 1
        return [1 / self.paces.unit_s(trial, *devices[:count]) for count in range(1, most + 1)]

    def devices_for(
        self, trial: int, free: Collection[int], busy: Mapping[int, float], here: tuple[int, ...] = (), share: int = 1
    ) -> tuple[int, ...]:
        """Return the devices on which a trial continues, `share` of them if possible; it waits for one that is busy.

        `busy` are devices that it may wait for → estimated seconds. On devices other than `here` it must load its
        checkpoint.
        """
        if self.kind is Placing.FIRST_COME:
            return here or tuple(sorted(free)[:1])
        found = self._together(trial, free, here, share) if share > 1 else self._one(trial, free, busy, here)
        self.moves += bool(here) and set(found) != set(here)
        return found

    def _together(self, trial: int, free: Collection[int], here: tuple[int, ...], share: int) -> tuple[int, ...]:
        best = tuple(sorted({*free, *here}, key=lambda device: (self.paces.unit_s(trial, device), device))[:share])
        gains = not here or self._unit_s(trial, best) < self._unit_s(trial, here) / (1 + LEAST_GAIN)
        return best if gains else here

    def _one(
        self, trial: int, free: Collection[int], busy: Mapping[int, float], here: tuple[int, ...]
    ) -> tuple[int, ...]:
        best, best_s = here, self._unit_s(trial, here) / (1 + LEAST_GAIN)
        if len(here) > 1:  # its other devices are for another trial, so it moves in any case
            best, best_s = (), math.inf
        for device, wait_s in sorted({**busy, **dict.fromkeys((*free, *here), 0.0)}.items()):
            if wait_s + self.paces.unit_s(trial, device) < best_s:
                best, best_s = (device,), wait_s + self.paces.unit_s(trial, device)
        return best

    def _unit_s(self, trial: int, devices: tuple[int, ...]) -> float:
        return self.paces.unit_s(trial, *devices) if devices else math.inf


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
