"""The assignment of streams to machines.

A second of video costs a stream a number of seconds on a machine of speed 1. A machine keeps up while its streams cost
at most its speed in total. Streams are placed in decreasing order of cost, each on the least loaded machine.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from uneven.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Placed:
    """The machine of each stream."""

    machine: Mapping[str, str]  # stream → machine
    load: Mapping[str, float]  # machine → total cost of its streams ÷ its speed; above 1 it falls behind

    @property
    def behind(self) -> tuple[str, ...]:
        """The machines that cannot keep up with live streams."""
        return tuple(name for name, load in self.load.items() if load > 1)


def place(cost: Mapping[str, float], speed: Mapping[str, float], stay: Mapping[str, str] | None = None) -> Placed:
    """Assign a machine to every stream.

    Args:
        cost: stream → seconds of work on a machine of speed 1 for each second of video.
        speed: machine → relative speed.
        stay: stream → machine of running streams, which stay there unless the machine is missing in ``speed``.

    Raises:
        ConfigError: there is no machine, or a cost or speed is not a positive number.
    """
    if not speed:
        raise ConfigError("no machine is left for the streams: add machines")
    _check("speed of machine", speed)
    _check("cost of stream", cost)
    machine = {stream: at for stream, at in (stay or {}).items() if stream in cost and at in speed}
    work = dict.fromkeys(speed, 0.0)
    for stream, at in machine.items():
        work[at] += cost[stream]
    for stream in sorted(cost.keys() - machine.keys(), key=lambda one: (-cost[one], one)):
        # The load that the machine would then have: a fast machine may take a stream although it is fuller.
        at = min(speed, key=lambda one: ((work[one] + cost[stream]) / speed[one], one))
        machine[stream] = at
        work[at] += cost[stream]
    return Placed(machine, {name: work[name] / speed[name] for name in speed})


def _check(what: str, numbers: Mapping[str, float]) -> None:
    for name, number in numbers.items():
        if not 0 < number < float("inf"):
            raise ConfigError(f"{what} {name!r} is {number}: give a number above 0")
