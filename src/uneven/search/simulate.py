"""A search in virtual time: the same core, scheduler and placing as a real one, known curves and costs. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from uneven.errors import ConfigError
from uneven.search.core import SearchCore
from uneven.search.placing import Placer
from uneven.search.records import TrialRecord
from uneven.search.rulings import Move
from uneven.search.space import Params

Curves = Callable[[Params, float], float]
"""Settings and training → metric."""
Costs = Callable[[Params], float]
"""Settings → seconds for a unit of training on a device of speed 1."""


@dataclass(frozen=True, slots=True)
class SimulatedSpan:
    """A trial on a device, from when to when, in virtual seconds."""

    trial: int
    device: int
    begin_s: float
    end_s: float


@dataclass(slots=True)
class SimulatedSearch:
    """What came of it.

    Attributes:
        end_s: when the last trial ended.
        units: training of all trials together.
        bests: every improvement: when, after how much training of all, and the best score so far.
    """

    end_s: float = 0.0
    units: float = 0.0
    bests: list[tuple[float, float, float]] = field(default_factory=list)
    spans: list[SimulatedSpan] = field(default_factory=list)

    def best_after(self, units: float) -> float:
        """The best score after so much training of all trials; −inf before the first."""
        return max((score for _, at, score in self.bests if at <= units), default=float("-inf"))


def simulate(
    core: SearchCore,
    curves: Curves,
    *,
    speeds: Sequence[float] = (1.0,),
    costs: Costs = lambda params: 1.0,
    placer: Placer | None = None,
    step: float = 1.0,
    most_units: float = float("inf"),
) -> SimulatedSearch:
    """Play a search to its end.

    Args:
        curves: what a trial reports.
        speeds: of the devices.
        step: training between two reports.
        most_units: it breaks off after so much training of all trials.

    Raises:
        ConfigError: no devices, or one that stands still.
    """
    if not speeds or not all(speed > 0 for speed in speeds):
        raise ConfigError(f"speeds={list(speeds)}: give at least one device, and each a speed above zero")
    placer = placer or Placer()
    played = SimulatedSearch()
    free = dict.fromkeys(range(len(speeds)))
    queue: list[tuple[float, int, int, float]] = []  # when a trial reports next, the device, the trial, its t then
    since: dict[int, float] = {}
    held: list[TrialRecord] = []
    now_s, best = 0.0, float("-inf")

    def unit_s(trial: TrialRecord, device: int) -> float:
        return costs(trial.params) / speeds[device]

    def go(trial: TrialRecord, device: int) -> None:
        free.pop(device, None)
        since.setdefault(device, now_s)
        heapq.heappush(queue, (now_s + step * unit_s(trial, device), device, trial.number, trial.t + step))

    def busy() -> dict[int, float]:
        if not placer.looks:
            return {}
        return {
            device: at_s - now_s + core.left(one, t) * placer.paces.unit_s(one, device)
            for at_s, device, one, t in queue
        }

    def fill() -> None:
        while free:
            trial = held.pop() if held else core.start()
            if trial is None:
                return
            device = placer.device_for(trial.number, free, busy())
            if device is None:
                held.append(trial)
                return
            go(trial, device)

    def leave(trial: int, device: int) -> None:
        free[device] = None
        played.spans.append(SimulatedSpan(trial, device, since.pop(device), now_s))

    fill()
    while queue and played.units < most_units:
        now_s, device, number, t = heapq.heappop(queue)
        trial = core.trials[number]
        placer.paces.measured(number, device, step, step * unit_s(trial, device))
        played.units += step
        metric = curves(trial.params, t)
        ruling = core.reported(number, t, metric)
        score = core.terms.sign * metric
        if score > best:
            best = score
            played.bests.append((now_s, played.units, best))
        if ruling.save:
            core.saved(number, t)
        if ruling.move is not Move.CONTINUE or ruling.clone is not None:
            leave(number, device)
        else:
            alone = not held and not core.waiting()
            there = placer.device_for(number, free, busy(), device) if alone else device
            if there != device:
                leave(number, device)
            if there is None:
                held.append(trial)
            else:
                go(trial, there)
        fill()
    played.end_s = now_s
    return played
