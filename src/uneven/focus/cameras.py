"""Which machine takes in which camera. Pure.

A stream costs so many seconds of a machine of speed 1 for each second of video; a machine keeps up while the streams on
it cost at most its speed together. Largest first onto the machine that is then least full.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from uneven.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Placed:
    """Where streams are taken in.

    Attributes:
        machine: stream → machine.
        load: machine → its streams' cost ÷ its speed; above 1 it falls behind.
    """

    machine: Mapping[str, str]
    load: Mapping[str, float]

    @property
    def behind(self) -> tuple[str, ...]:
        """Machines that cannot keep up with a live stream."""
        return tuple(name for name, load in self.load.items() if load > 1)


def place(cost: Mapping[str, float], speed: Mapping[str, float], stay: Mapping[str, str] | None = None) -> Placed:
    """Give every stream a machine.

    Args:
        cost: stream → seconds of work of a machine of speed 1 for each second of video.
        speed: machine → how fast it is.
        stay: streams that are on a machine and stay there, if it still is one; a machine that died is not in ``speed``.

    Raises:
        ConfigError: no machine, or a cost or speed that is none.
    """
    if not speed:
        raise ConfigError("no machine is left to take in the streams")
    _check("speed of machine", speed)
    _check("cost of stream", cost)
    machine = {stream: at for stream, at in (stay or {}).items() if stream in cost and at in speed}
    work = dict.fromkeys(speed, 0.0)
    for stream, at in machine.items():
        work[at] += cost[stream]
    for stream in sorted(cost.keys() - machine.keys(), key=lambda one: (-cost[one], one)):
        at = min(speed, key=lambda one: ((work[one] + cost[stream]) / speed[one], one))
        machine[stream] = at
        work[at] += cost[stream]
    return Placed(machine, {name: work[name] / speed[name] for name in speed})


def _check(what: str, numbers: Mapping[str, float]) -> None:
    for name, number in numbers.items():
        if not 0 < number < float("inf"):
            raise ConfigError(f"{what} {name!r} is {number}: give a number above 0")
