"""How fast members are on how many devices: asked once, before the first flotilla."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from uneven.errors import ConfigError
from uneven.fleet.engine_devices import cores
from uneven.fleet.engine_hosts import Hosts
from uneven.fleet.engine_state import RunState
from uneven.fleet.member_host import Job
from uneven.fleet.profile import most_profiled, rate_per_s
from uneven.fleet.rates import Rates

PROFILE_S = 0.5
"""Longest profile of a member on one number of devices."""


def known_rates(
    hosts: Hosts,
    state: RunState,
    job_of: Callable[[str, tuple[str, ...]], Job],
    devices: tuple[str, ...],
    given: Mapping[str, Sequence[float]] | None,
    sample: list[Any],
    look: Callable[[], None],
) -> Rates:
    """The rates that the user gave, that an earlier start measured, or that members show now.

    FLEET's order: r(1) of all, then r(2 … M_t); one after the other here, so that none disturbs another one. No member
    is tried on more CPU slots than there are cores, or on more devices than its batch can be divided among. One that
    cannot be profiled has failed; one that can on fewer devices is trained on those.

    Raises:
        ConfigError: rates were given, but not of every member.
    """
    if given is not None:
        missing = [name for name in state.members if name not in given]
        if missing:
            raise ConfigError(f"rates has no entry for member {missing[0]!r}: give all members one, or none")
        state.rates = {name: [float(rate) for rate in given[name]] for name in state.members}

    def measure(name: str, count: int) -> bool:
        job = replace(job_of(name, devices[:count]), epochs=0)
        hosts.profile(job, sample, PROFILE_S)
        answer = hosts.collect(look)[name]
        hosts.leave(name)
        member = state.members[name]
        if answer[0] == "profiled":
            _, steps_s, batch, used = answer
            if used == count:
                state.rates.setdefault(name, []).append(rate_per_s(steps_s, batch))
            return bool(used == count)
        why = answer[1].strip() if answer[0] == "failed" else f"its process died in its profile ({answer[1]})"
        if count == 1:
            member.status, member.why = "failed", why
        else:
            member.note = f"not on {count} devices: {why}"
        return False

    fresh = [name for name, one in state.members.items() if one.status == "waiting" and name not in state.rates]
    for name in fresh:
        measure(name, 1)
    useful = cores() if devices[0] == "cpu" else len(devices)
    alone = {name: rates[0] for name, rates in state.rates.items() if rates[0] > 0.0}
    most = min(useful, most_profiled(alone, len(devices), len(devices))) if alone else 1
    for name in fresh:
        if state.members[name].status == "waiting":
            all(measure(name, count) for count in range(2, most + 1))  # up to the first that cannot be
    return Rates({name: state.rates.get(name, [1.0]) for name in state.members})
