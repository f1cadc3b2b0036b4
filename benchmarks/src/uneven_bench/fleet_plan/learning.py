"""A planner that believes what members show while they run. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from uneven.fleet.planning.allocate import Flotilla
from uneven.fleet.planning.rates import CHANGED
from uneven.fleet.planning.rounds import Planner


class LearningPlanner:
    """A planner whose rates are corrected by the running flotilla. Ours; the paper profiles once.

    It plans as the one it is made from. Tell it what members show at the ends of their epochs. If those told of are
    slower together than was planned, by more than ``changed``, the round ends, as if too few devices were busy, and
    all is planned anew: one member that is slower than believed would hold up all the others for the whole round.

    Args:
        planner: with the rates of a profile.
        changed: see ``Rates.corrected``.
        profiled: up to how many devices rates were measured; all of them by default.

    Attributes:
        planner: with the rates believed now.
    """

    def __init__(self, planner: Planner, *, changed: float = CHANGED, profiled: int | None = None) -> None:
        self.planner = planner
        self.shared = planner.shared
        self._changed, self._profiled = changed, profiled
        self._surprised = False

    def observe(self, seen: Mapping[str, tuple[int, float]]) -> None:
        """Take what members showed: member → its devices, and its samples/s while it computed, without waiting.

        Raises:
            ConfigError: a rate that cannot be; see ``Rates.corrected``.
        """
        before = self.planner.rates
        rates = before.corrected(seen, changed=self._changed, profiled=self._profiled)
        flotilla = Flotilla({name: count for name, (count, _) in seen.items()})
        if flotilla.members:
            slower = flotilla.pace_per_s(rates) < (1.0 - self._changed) * flotilla.pace_per_s(before)
            self._surprised = self._surprised or slower
        self.planner = replace(self.planner, rates=rates)

    def next_flotilla(self, waiting: Iterable[str], free_devices: int, running: Flotilla) -> Flotilla:
        """See ``Planner.next_flotilla``."""
        if not running.members:
            self._surprised = False
        return self.planner.next_flotilla(waiting, free_devices, running)

    def round_ends(self, busy_devices: int) -> bool:
        """See ``Planner.round_ends``; also when members have shown a slower pace than was planned."""
        return self._surprised or self.planner.round_ends(busy_devices)
