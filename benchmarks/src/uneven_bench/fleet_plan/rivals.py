"""Rivals of FLEET as planners (:class:`uneven.fleet.pure.planning.flotillas.FlotillaPlanner`): one pipeline per member,
homogeneous sharing, one after another."""

import random
from collections.abc import Iterable

from uneven.errors import ConfigError
from uneven.fleet.pure.planning.allocate import Flotilla
from uneven.fleet.pure.planning.rates import Rates


class OnePerDevice:
    """The paper's Baseline (section 6.1): each member alone on one device with its own pipeline; a free device takes a
    random one. ``seed``: of the order."""

    shared = False

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)

    def next_flotilla(self, waiting: Iterable[str], free_devices: int, running: Flotilla) -> Flotilla:
        queue = sorted(waiting)
        return Flotilla(dict.fromkeys(self._random.sample(queue, min(free_devices, len(queue))), 1))

    def round_ends(self, busy_devices: int) -> bool:
        return busy_devices == 0


class Homogeneous(OnePerDevice):
    """The sharing of FLEET's predecessor (Pittman et al., SC 2018; section 6.1): a random M members share one stream,
    one device each; the next ones follow when all have finished. ``seed``: of the order."""

    shared = True

    def next_flotilla(self, waiting: Iterable[str], free_devices: int, running: Flotilla) -> Flotilla:
        return Flotilla() if running.members else super().next_flotilla(waiting, free_devices, running)


class OneAfterAnother:
    """One member at a time on all devices that it can use, the optimum under perfect scaling (footnote 3). If a
    member's rate turns down, it gets the fastest number of ``devices``, M."""

    shared = False

    def __init__(self, rates: Rates, devices: int) -> None:
        if devices < 1:
            raise ConfigError(f"an ensemble cannot be trained on {devices} devices: give at least one")
        self._best = {name: int(rates.table[place, :devices].argmax()) + 1 for place, name in enumerate(rates.members)}

    def next_flotilla(self, waiting: Iterable[str], free_devices: int, running: Flotilla) -> Flotilla:
        queue = set(waiting)
        first = next((name for name in self._best if name in queue), None)
        return Flotilla() if running.members or first is None else Flotilla({first: self._best[first]})

    def round_ends(self, busy_devices: int) -> bool:
        return busy_devices == 0
