"""Decide when a flotilla ends and which one follows: FLEET-G, FLEET-L, and both together."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar, Protocol

from uneven.errors import ConfigError
from uneven.fleet.pure.planning.allocate import Closeness, Flotilla, create_flotilla, hand_out_rest, waiting_places
from uneven.fleet.pure.planning.rates import Rates


class FlotillaPlanner(Protocol):
    """The planner of a training: which members start on free devices, and when all are stopped and planned again."""

    @property
    def shared(self) -> bool:
        """True if members that run at the same time share one stream of samples, and so one speed."""

    def next_flotilla(self, waiting: Iterable[str], free_devices: int, running: Flotilla) -> Flotilla:
        """Return the members that start now and their devices; see ``Planner.next_flotilla``."""

    def round_ends(self, busy_devices: int) -> bool:
        """Return whether the running members are stopped now; see ``Planner.round_ends``."""


ALPHA = 0.8  # α of the paper's experiments: share of the devices that must be busy for a round to continue

_SAME = 1e-9  # devices; α · M as a float product may be slightly above the integer that it represents


class Paradigm(Enum):
    """The use of the devices of a member that has converged."""

    GLOBAL = "fleet-g"
    """They are idle until the round ends; then all devices are planned again."""

    LOCAL = "fleet-l"
    """They are given immediately to waiting members; no running member is stopped."""

    REFILL = "fleet-refill"
    """Ours: they are given immediately to members within δ of the running rate, and all is planned again as in FLEET-G.
    Members converge at an epoch's end, so newcomers are in step with running members."""


@dataclass(frozen=True)
class Planner:
    """The plan of a whole training. It has no state; the caller keeps track of waiting and running members.

    A round of FLEET-G with M devices::

        flotilla = planner.next_flotilla(waiting, M, running=Flotilla())     # none waits: the training is over
        ...each epoch end: take the converged ones out of ``running``, their devices rest...
        if planner.round_ends(running.devices):  checkpoint all, running = Flotilla(), plan again

    The other paradigms call ``next_flotilla(waiting, free, running)`` when devices become free. It may be called at any
    time: FLEET-G returns an empty flotilla during a round.

    Args:
        rates: of all members; make a new planner when they have changed.
        alpha: α; ``round_ends`` when fewer than α · M devices are busy. In the paper it belongs to FLEET-G.
        at_running_pace: newcomers to a running flotilla must be within δ of its rate. Ours, for FLEET-L: otherwise a
            newcomer may be slower than all running members and slow their stream down. The paper does not define the
            reference in this case; without this flag it is the fastest newcomer, as in a new flotilla.

    Raises:
        ConfigError: fewer than one device, α outside 0 … 1, or a member that does not fit on all devices together.
    """

    shared: ClassVar[bool] = True
    """Members that run at the same time share one stream of samples."""

    rates: Rates
    devices: int
    paradigm: Paradigm = Paradigm.GLOBAL
    closeness: Closeness = field(default_factory=Closeness)
    alpha: float = ALPHA
    at_running_pace: bool = False

    def __post_init__(self) -> None:
        if self.devices < 1:
            raise ConfigError(f"{self.devices} devices: give at least one")
        if not 0.0 <= self.alpha <= 1.0:
            raise ConfigError(f"alpha is {self.alpha}: give a fraction of the devices, 0 to 1")
        for name in self.rates.members:
            if self.rates.least(name) > self.devices:
                raise ConfigError(
                    f"member {name!r} needs {self.rates.least(name)} devices, but there are {self.devices}: give "
                    "it more memory per device, or leave it out"
                )

    def next_flotilla(self, waiting: Iterable[str], free_devices: int, running: Flotilla) -> Flotilla:
        """Return the members that start now and their devices; empty if none does.

        `waiting` are members that wait, `running` those in training that have not converged. Raises `ConfigError` if
        more devices are in use or free than there are, or a member both waits and runs.
        """
        queue = tuple(waiting)
        if running.devices + free_devices > self.devices:
            raise ConfigError(
                f"{running.devices} devices in use and {free_devices} free are more than the {self.devices} there are"
            )
        twice = [name for name in queue if name in running.members]
        if twice:
            raise ConfigError(f"member {twice[0]!r} is both running and waiting: name it once")
        if running.members and self.paradigm is Paradigm.GLOBAL:
            return Flotilla()
        near = self.at_running_pace or self.paradigm is Paradigm.REFILL
        reference = running.pace_per_s(self.rates) if running.members and near else None
        return self._chosen(queue, free_devices, reference)

    def _chosen(self, queue: tuple[str, ...], devices: int, pace_per_s: float | None) -> Flotilla:
        return create_flotilla(self.rates, queue, devices, closeness=self.closeness, reference_per_s=pace_per_s)

    def round_ends(self, busy_devices: int) -> bool:
        """Return whether all running members are to be stopped and planned again: fewer than α · M devices are busy.

        α is a share of *devices*, not of members; at exactly α · M the round continues. FLEET-L has no rounds, so it
        returns False while a member runs.
        """
        if self.paradigm is Paradigm.LOCAL:
            return busy_devices == 0
        return busy_devices == 0 or busy_devices < self.alpha * self.devices - _SAME


# Data-parallel training costs more on each core than single-process training, and preprocessors can use a free core.
# So a left-over slot must raise the slowest member's rate by at least this share.
LEAST_GAIN = 0.1

MEMORY_SHARE = 0.8  # part of the free memory that members may take together


class Together:
    """A planner like :class:`Planner` for members that take turns on a processor's slots: our alternative to FLEET.

    Each of FLEET's devices belongs to one member, so members of different speeds leave devices idle; its rule looks for
    equal speeds. A core belongs to no member: one that waits for a sample leaves its core to any process with work. So
    different speeds cost nothing while all cores have work, and fewer samples are prepared the more members share the
    stream. If members need c_i core-seconds per sample, preprocessing needs c_0, and there are C cores, the stream
    moves at::

        min( C / (c_0 + Σ c_i),  min_i 1 / c_i )

    The first term is all cores at work. A second slot for one member helps only if the second term is
    smaller: that member keeps its core busy while others are idle.

    Args:
        rates: of all members on 1, 2, … slots; with rates on one slot only, no member gets a second one.
        places: members that may run at the same time; may exceed ``slots``.

    Raises:
        ConfigError: no slot, or no place.
    """

    shared: ClassVar[bool] = True

    def __init__(
        self, rates: Rates, slots: int, places: int, *, alpha: float = ALPHA, least_gain: float = LEAST_GAIN
    ) -> None:
        if slots < 1 or places < 1:
            raise ConfigError(f"{places} members at a time on {slots} slots: give at least one of each")
        self._rates = rates
        self._slots = slots
        self._places = places
        self._alpha = alpha
        self._least_gain = least_gain

    def next_flotilla(self, waiting: Iterable[str], free_devices: int, running: Flotilla) -> Flotilla:
        """Return the members that start now; see ``Planner.next_flotilla``. Slots are shared, so none is ever taken."""
        # If memory does not hold all, the slowest start first, so that members on one stream have similar speeds.
        rows = sorted(waiting_places(self._rates, waiting), key=lambda row: self._rates.table[row, 0])
        chosen = dict.fromkeys(rows[: self._places - len(running.members)], 1)
        if not running.members and len(chosen) < self._slots:
            hand_out_rest(self._rates.table, self._slots, chosen, self._least_gain)
        return Flotilla({self._rates.members[row]: count for row, count in chosen.items()})

    def round_ends(self, busy_devices: int) -> bool:
        """Return whether the running members are stopped and planned again: fewer than α · slots are used."""
        return busy_devices < self._alpha * self._slots


def places_for(members: int, slots: int, member_bytes: int, free_bytes: int) -> int:
    """Return how many members may run at the same time: all if memory holds them, at least one.

    `member_bytes` is the memory of the largest member's process; zero, if unknown, sets no limit. `free_bytes` is the
    free memory before any member starts. Raises `ConfigError` for no members or no slots.
    """
    if members < 1 or slots < 1:
        raise ConfigError(f"{members} members on {slots} slots: give at least one of each")
    fit = int(MEMORY_SHARE * free_bytes / member_bytes) if member_bytes > 0 else members
    return max(1, min(members, fit))


def takes_turns(slots: int, cores: int) -> bool:
    """Return whether CPU slots share cores: there are at least as many slots as cores.

    With fewer slots than cores, each slot and a preprocessor have a core, as with FLEET's devices.
    """
    return slots >= cores
