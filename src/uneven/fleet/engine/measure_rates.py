"""Measure members' speeds before the first flotilla, only as far as its plan needs them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from uneven.errors import ConfigError
from uneven.fleet.engine.fleet_state import RunState
from uneven.fleet.engine.hosts import Hosts
from uneven.fleet.member.member_host import Job
from uneven.fleet.pure.planning.rates import Rates, most_profiled, rate_per_s
from uneven.runtime.jobs.executor import Place

PROFILE_S = 0.5  # longest profile of a member on one number of devices


# If members take turns, rates decide little; a profile only shows the memory and whether the member works.
LOOK_S = 0.05


@dataclass(frozen=True, slots=True)
class Profiler:
    """A short run of members on data that is always available; it writes the results into the state."""

    hosts: Hosts
    state: RunState
    job_of: Callable[[str, tuple[int, ...]], Job]  # a member's name and devices of the place → its job
    place: Place
    sample: list[Any]  # the fields of a sample, as arrays
    look: Callable[[], None]  # called four times a second

    def known_rates(self, names: Iterable[str], least_gain: float | None = None) -> None:
        """Measure these members as FLEET does, unless an earlier start did: r(1) of all, then r(2 … M_t).

        A member is tried on at most as many CPU slots as cores, and on at most as many devices as its batch divides
        into. If it fails on several devices, it is trained on fewer. With `least_gain` (ours), it is tried on no
        further device after one that adds less than this share.
        """
        state, devices = self.state, self.place.devices
        fresh = [name for name in names if self._waits(name) and name not in state.rates]
        for name in fresh:
            # One member at a time, so that members do not slow each other down.
            self._rate(name, 1)
        alone = {name: rates[0] for name, rates in state.rates.items() if rates[0] > 0.0}
        most = min(self._useful, most_profiled(alone, len(devices), len(devices))) if alone else 1
        for name in fresh:
            if self._waits(name):
                all(self._rate(name, count, least_gain) for count in range(2, most + 1))  # stops at the first useless

    @property
    def _useful(self) -> int:
        """Return the largest number of devices worth measuring. CPU slots beyond the cores add nothing."""
        place = self.place
        return place.cores if place.shares_devices and place.devices[0] == "cpu" else len(place.devices)

    def brief_look(self) -> None:
        state = self.state
        new = [name for name in state.members if self._waits(name) and name not in state.alone]
        slots = len(self.place.devices)
        for first in range(0, len(new), slots):
            for name, answer in self._tried(new[first : first + slots], 1, LOOK_S).items():
                _, steps_s, batch, _, held_bytes = answer
                state.alone[name] = rate_per_s(steps_s, batch, median=True)
                state.member_bytes = max(state.member_bytes, held_bytes)

    def rates(self) -> Rates:
        """Return the known rates of all members. A member without a measurement gets 1.0."""
        known = {name: [rate] for name, rate in self.state.alone.items()} | self.state.rates
        return Rates({name: known.get(name, [1.0]) for name in self.state.members})

    def _waits(self, name: str) -> bool:
        return self.state.members[name].status == "waiting"

    def _rate(self, name: str, count: int, least_gain: float | None = None) -> bool:
        for _, steps_s, batch, used, _ in self._tried([name], count, PROFILE_S).values():
            if used == count:
                known = self.state.rates.setdefault(name, [])
                known.append(rate_per_s(steps_s, batch, median=self.place.devices[0] == "cpu"))
                return least_gain is None or count == 1 or known[-1] >= (1.0 + least_gain) * known[-2]
        return False

    def _tried(self, names: Sequence[str], count: int, limit_s: float) -> dict[str, tuple[Any, ...]]:
        answers: dict[str, tuple[Any, ...]] = {}
        while names:
            lost = self.place.gone()
            here = tuple(device for device in range(len(self.place.devices)) if device not in lost)[:count]
            if len(here) < count:
                return {}
            for name in names:
                self.hosts.profile(replace(self.job_of(name, here), epochs=0), self.sample, limit_s)
            answers |= self.hosts.collect(self.look)
            for name in names:
                self.hosts.leave(name)
            # Only a death on a live machine counts against the member; after the loss of a machine all are tried again.
            if self.place.gone() == lost:
                names = [name for name in names if answers[name][0] == "died" and not self._too_often(name, answers)]
        for name, answer in answers.items():
            member = self.state.members[name]
            member.deaths = 0
            if answer[0] != "profiled" and count == 1:
                member.status, member.why = "failed", answer[1].strip()
            elif answer[0] != "profiled":
                member.note = f"not on {count} devices: {answer[1].strip()}"
        return {name: answer for name, answer in answers.items() if answer[0] == "profiled"}

    def _too_often(self, name: str, answers: dict[str, tuple[Any, ...]]) -> bool:
        why = self.state.members[name].died(answers[name][1], "its profile")
        if why:
            answers[name] = ("failed", why)
        return bool(why)


def take_given(state: RunState, given: Mapping[str, Sequence[float]]) -> None:
    """Store the rates that the user gave. Raises `ConfigError` if a member has none."""
    missing = [name for name in state.members if name not in given]
    if missing:
        raise ConfigError(
            f"rates has no entry for member {missing[0]!r}: give one for every member, or leave rates out"
        )
    state.rates = {name: [float(rate) for rate in given[name]] for name in state.members}
