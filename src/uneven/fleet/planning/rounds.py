"""When a flotilla ends and who follows: FLEET-G, FLEET-L, and both together. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar

from uneven.errors import ConfigError
from uneven.fleet.planning.allocate import Closeness, Flotilla, create_flotilla
from uneven.fleet.planning.rates import Rates

ALPHA = 0.8
"""α of the paper's experiments: the share of the devices that must be busy for a round to go on."""

_SAME = 1e-9  # devices: α · M as a product of floats may lie a hair above the whole number that it is


class Paradigm(Enum):
    """What becomes of the devices of a member that has converged."""

    GLOBAL = "fleet-g"
    """They rest until the round ends; then all devices are planned anew."""

    LOCAL = "fleet-l"
    """They are given at once to members that wait; nobody who runs is stopped."""

    REFILL = "fleet-refill"
    """Ours: they are given at once to members within δ of the running pace, and all is planned anew as in FLEET-G.

    Members converge at an epoch's end, so newcomers are in step with those who run.
    """


@dataclass(frozen=True)
class Planner:
    """Plans a whole training; holds no state, so what trains keeps who waits and who runs.

    A round of FLEET-G, with M devices, in the engine's words::

        flotilla = planner.next_flotilla(waiting, M, running=Flotilla())     # none waits: the training is over
        ...each epoch end: take the converged ones out of ``running``, their devices rest...
        if planner.round_ends(running.devices):  checkpoint all, running = Flotilla(), plan again

    The others ask ``next_flotilla(waiting, free, running)`` whenever devices become free; FLEET-L never stops anybody.
    All may be asked at any time: FLEET-G answers with an empty flotilla while its round goes on.

    Args:
        rates: of all members; make a new planner when they have changed.
        devices: M, how many there are.
        paradigm: global (FLEET-G), local (FLEET-L) or both (ours).
        closeness: what is near enough, and what becomes of left-over devices.
        alpha: α; ``round_ends`` when fewer than α · M devices are busy. The paper has it for FLEET-G.
        at_running_pace: who joins a running flotilla must be within δ of its pace. Ours, for FLEET-L, since newcomers
            share the stream: without it a newcomer may be slower than all who run, and hold them up. The paper does
            not say which rate is the reference there; without it the fastest newcomer is, as in a new flotilla.

    Raises:
        ConfigError: fewer than one device, α outside 0 … 1, or a member that does not fit on all devices together.
    """

    shared: ClassVar[bool] = True
    """Those who run at the same time share one stream of samples."""

    rates: Rates
    devices: int
    paradigm: Paradigm = Paradigm.GLOBAL
    closeness: Closeness = field(default_factory=Closeness)
    alpha: float = ALPHA
    at_running_pace: bool = False

    def __post_init__(self) -> None:
        if self.devices < 1:
            raise ConfigError(f"an ensemble cannot be trained on {self.devices} devices: give at least one")
        if not 0.0 <= self.alpha <= 1.0:
            raise ConfigError(f"alpha is {self.alpha}: it is a share of the devices, 0 … 1")
        for name in self.rates.members:
            if self.rates.least(name) > self.devices:
                raise ConfigError(
                    f"member {name!r} needs {self.rates.least(name)} devices, and there are {self.devices}: give it "
                    f"more memory per device, or leave it out"
                )

    def next_flotilla(self, waiting: Iterable[str], free_devices: int, running: Flotilla) -> Flotilla:
        """Who starts now, on how many of the free devices; empty if nobody does.

        Args:
            waiting: who is neither trained nor running.
            free_devices: devices that nobody uses.
            running: who trains at the moment, without those who have converged.

        Raises:
            ConfigError: more devices in use and free than there are, or somebody who both waits and runs.
        """
        queue = tuple(waiting)
        if running.devices + free_devices > self.devices:
            raise ConfigError(
                f"{running.devices} devices in use and {free_devices} free are more than the {self.devices} there are"
            )
        twice = [name for name in queue if name in running.members]
        if twice:
            raise ConfigError(f"member {twice[0]!r} is running, so it cannot wait: name it once")
        if running.members and self.paradigm is Paradigm.GLOBAL:
            return Flotilla()
        near = self.at_running_pace or self.paradigm is Paradigm.REFILL
        reference = running.pace_per_s(self.rates) if running.members and near else None
        return self._chosen(queue, free_devices, reference)

    def _chosen(self, queue: tuple[str, ...], devices: int, pace_per_s: float | None) -> Flotilla:
        return create_flotilla(self.rates, queue, devices, closeness=self.closeness, reference_per_s=pace_per_s)

    def round_ends(self, busy_devices: int) -> bool:
        """Whether all who still run are to be stopped, checkpointed and planned anew: fewer than α · M are busy.

        A share of *devices*, not of members; at exactly α · M the round goes on. FLEET-L has no rounds: never, while
        anybody runs.
        """
        if self.paradigm is Paradigm.LOCAL:
            return busy_devices == 0
        return busy_devices == 0 or busy_devices < self.alpha * self.devices - _SAME
