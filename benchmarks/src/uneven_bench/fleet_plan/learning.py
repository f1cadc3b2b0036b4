"""A planner that learns from the measured rates of running members."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from uneven.errors import ConfigError
from uneven.fleet.pure.planning.allocate import Flotilla
from uneven.fleet.pure.planning.flotillas import Planner
from uneven.fleet.pure.planning.rates import Rates

CHANGED = 0.10  # a member's rate is corrected if it differs from the table by more than this share. Ours.


class LearningPlanner:
    """A planner whose rates are corrected by the running flotilla. Ours; the paper profiles once.

    The caller reports members at the ends of their epochs. If these together are slower than planned by more than
    :data:`CHANGED`, the round ends and is planned again: one slow member would hold up all others for the whole round.
    ``planner``: with the rates of a profile, then with the current ones; ``profiled``: the largest number of devices
    with measured rates; all of them by default.
    """

    def __init__(self, planner: Planner, *, profiled: int | None = None) -> None:
        self.planner = planner
        self.shared = planner.shared
        self._profiled = profiled
        self._surprised = False

    def observe(self, seen: Mapping[str, tuple[int, float]]) -> None:
        """Take member → its devices, and its samples/s while it computed. Raises ConfigError: an impossible rate."""
        before = self.planner.rates
        rates = corrected(before, seen, profiled=self._profiled)
        flotilla = Flotilla({name: count for name, (count, _) in seen.items()})
        if flotilla.members:
            slower = flotilla.pace_per_s(rates) < (1.0 - CHANGED) * flotilla.pace_per_s(before)
            self._surprised = self._surprised or slower
        self.planner = replace(self.planner, rates=rates)

    def next_flotilla(self, waiting: Iterable[str], free_devices: int, running: Flotilla) -> Flotilla:
        if not running.members:
            self._surprised = False
        return self.planner.next_flotilla(waiting, free_devices, running)

    def round_ends(self, busy_devices: int) -> bool:
        """See ``Planner.round_ends``; also True when members are slower than planned."""
        return self._surprised or self.planner.round_ends(busy_devices)


def corrected(rates: Rates, seen: Mapping[str, tuple[int, float]], *, profiled: int | None = None) -> Rates:
    """Return the rates with those corrected that differ from a running flotilla's by more than :data:`CHANGED`.

    If a member runs on a profiled number of devices, its whole row is rescaled: it is slower or faster on any number.
    On more devices its rate was extrapolated, and the error is taken to be the extrapolation's: it grows from zero, at
    the last profiled number, to the measured error, and stays beyond.

    ``seen``: member → devices, and samples/s *while it computes*, without the wait for the shared stream: in a flotilla
    all have the pace of the slowest; ``profiled``: the largest number of devices with measured rates; all of them by
    default. Raises ConfigError: a measured rate that is not positive, or on devices on which the member does not fit.
    """
    table = rates.table.copy()
    counts = np.arange(1, rates.most + 1)
    for name, (devices, rate) in seen.items():
        known = rates.per_s(name, devices)
        if not (0.0 < rate < math.inf) or known == 0.0:
            raise ConfigError(
                f"member {name!r} cannot have trained {rate} samples/s on {devices} devices: the rate must be "
                f"positive, and the member must fit there"
            )
        if abs(rate - known) <= CHANGED * known:
            continue
        end = rates.most if profiled is None else profiled
        beyond = 1.0 if devices <= end else np.clip((counts - end) / (devices - end), 0.0, 1.0)
        table[rates.place(name)] *= (rate / known) ** beyond
    return Rates(dict(zip(rates.members, table, strict=True)))
