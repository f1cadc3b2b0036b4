"""A whole ensemble in virtual time, under any planner.

Members are rates and epochs. Members of a stream have the pace of the slowest: skew within its bounded buffers is left
out. FLEET-G's members start together at an epoch's start, so when one of them ends, all are at an epoch's end and a
round can stop. A newcomer of FLEET-L joins the stream in place and counts its epochs from there.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from uneven.errors import ConfigError
from uneven.fleet.pure.planning.allocate import Flotilla
from uneven.fleet.pure.planning.assign import assign_devices
from uneven.fleet.pure.planning.flotillas import FlotillaPlanner
from uneven.fleet.pure.planning.rates import Rates

_DONE = 1e-9  # epochs; the rounding error of a finished member
_NEAR = 1e-6  # epochs; the rounding error of an epoch's end


@dataclass(frozen=True)
class EnsembleWork:
    """An ensemble to train, and its data."""

    rates: Rates  # true rates by number of devices; a planner may believe others
    epochs: Mapping[str, int]  # member → epochs until it has converged, unknown to planners
    samples: int  # of the data set; one epoch
    nodes: Sequence[Sequence[int]]  # devices, node by node
    # samples/s that the processors of one device prepare: for its member's own pipeline, or for the shared stream
    prepared_per_s: float = math.inf
    # the cost of stopping a round, if a member continues: all write, and some read, their states
    checkpoint_s: float = 0.0

    def __post_init__(self) -> None:
        if set(self.epochs) != set(self.rates.members):
            raise ConfigError("epochs and rates name different members: give both for each")
        if min(self.epochs.values()) < 1 or self.samples < 1 or self.devices < 1:
            raise ConfigError("every member needs an epoch, the data set a sample and the ensemble a device")
        if not (self.prepared_per_s > 0.0 and 0.0 <= self.checkpoint_s < math.inf):
            raise ConfigError(
                f"{self.prepared_per_s} samples/s prepared and {self.checkpoint_s} s for a checkpoint: the first must "
                f"be positive, the second zero or positive"
            )

    @property
    def devices(self) -> int:
        return sum(len(node) for node in self.nodes)


@dataclass(frozen=True, slots=True)
class Bar:
    """A stretch in which a member ran."""

    member: str
    devices: tuple[int, ...]  # their numbers
    start_s: float
    end_s: float
    computed: float  # share of the stretch in which they computed; the rest is waiting for others or for samples
    ended: bool  # the member had converged at its end


@dataclass(frozen=True)
class FleetOutcome:
    """The outcome of a training. The four shares are of all device-seconds, devices × ``wall_s``, and add up to 1."""

    wall_s: float  # until the last member has ended
    compute_share: float  # devices compute
    wait_share: float  # they have a member, which waits for others or for samples
    idle_share: float  # they have no member
    checkpoint_share: float  # they rest for a checkpoint
    rounds: int  # number of starts; for FLEET-G and homogeneous sharing, the flotillas
    prepared: float  # samples prepared, as multiples of the data set
    bars: tuple[Bar, ...] = field(repr=False)  # in order of their starts


Assign = Callable[[Flotilla, Sequence[Sequence[int]]], dict[str, tuple[int, ...]]]
"""An assignment: a flotilla and the free devices, node by node → member → its devices."""


Told = Callable[[Mapping[str, tuple[int, float]]], None]
"""A receiver of member → its devices and samples/s, after a first epoch since a start."""


def play(
    work: EnsembleWork, plans: FlotillaPlanner, assign: Assign = assign_devices, told: Told | None = None
) -> FleetOutcome:
    """Train the ensemble in virtual time. ``assign``: assigns devices; another one to time it, for instance; ``told``:
    receives members' rates, as a ``LearningPlanner`` takes them; the planner may end the round then. Raises
    ConfigError: a planner that starts no member while one waits and none runs, or starts one that cannot run."""
    return _FleetPlay(work, plans, assign, told).run()


class _FleetPlay:
    def __init__(self, work: EnsembleWork, plans: FlotillaPlanner, assign: Assign, told: Told | None) -> None:
        self.work = work
        self.plans = plans
        self.assign = assign
        self.told = told
        self.left = {name: float(count) for name, count in work.epochs.items()}
        self.waiting = list(work.rates.members)
        self.running: dict[str, tuple[int, ...]] = {}
        self.since: dict[str, tuple[float, float]] = {}  # its start, and seconds that it has computed since
        self.unseen: dict[str, float] = {}  # epochs left at the end of the first one since the start
        self.now_s = 0.0
        self.busy_s = self.held_s = self.saved_s = 0.0  # device-seconds
        self.prepared = 0.0
        self.rounds = 0
        self.bars: list[Bar] = []

    def run(self) -> FleetOutcome:
        while self.waiting or self.running:
            self.start()
            self.advance()
            busy = sum(map(len, self.running.values()))
            if self.plans.round_ends(busy):
                self.stop()
        total_s = self.work.devices * self.now_s
        return FleetOutcome(
            wall_s=self.now_s,
            compute_share=self.busy_s / total_s,
            wait_share=(self.held_s - self.busy_s) / total_s,
            idle_share=1.0 - (self.held_s + self.saved_s) / total_s,
            checkpoint_share=self.saved_s / total_s,
            rounds=self.rounds,
            prepared=self.prepared,
            bars=tuple(sorted(self.bars, key=lambda bar: (bar.start_s, bar.devices))),
        )

    def start(self) -> None:
        taken = {device for devices in self.running.values() for device in devices}
        free = [[device for device in node if device not in taken] for node in self.work.nodes]
        count = self.work.devices - len(taken)
        if not (self.waiting and count):
            return
        running = Flotilla({name: len(devices) for name, devices in self.running.items()})
        flotilla = self.plans.next_flotilla(tuple(self.waiting), count, running)
        if not flotilla.members:
            if not self.running:
                raise ConfigError(f"{len(self.waiting)} members wait, {count} devices are free, and nobody is started")
            return
        assigned = self.assign(flotilla, free)
        self.rounds += 1
        for name, devices in assigned.items():
            if self.work.rates.per_s(name, len(devices)) == 0.0:
                raise ConfigError(f"member {name!r} cannot run on {len(devices)} devices")
            self.waiting.remove(name)
            self.running[name] = devices
            self.since[name] = (self.now_s, 0.0)
            if self.told is not None:
                self.unseen[name] = max(0.0, self.left[name] - 1.0)

    def speeds(self) -> dict[str, float]:
        """Return the samples/s of each running member."""
        own = {name: self.work.rates.per_s(name, len(devices)) for name, devices in self.running.items()}
        if not self.plans.shared:
            return {name: min(rate, len(self.running[name]) * self.work.prepared_per_s) for name, rate in own.items()}
        pace = min(*own.values(), self.work.devices * self.work.prepared_per_s)
        return dict.fromkeys(own, pace)

    def advance(self) -> None:
        """Continue to the end of the next member, or of a first epoch if ``told`` wants it."""
        speeds = self.speeds()
        goals = {name: self.left[name] - self.unseen.get(name, 0.0) for name in speeds}
        step_s = min(goals[name] * self.work.samples / speed for name, speed in speeds.items())
        self.now_s += step_s
        streams = [max(speeds.values())] if self.plans.shared else list(speeds.values())
        self.prepared += math.fsum(streams) * step_s / self.work.samples
        for name, speed in speeds.items():
            devices = self.running[name]
            computed_s = step_s * speed / self.work.rates.per_s(name, len(devices))
            self.held_s += len(devices) * step_s
            self.busy_s += len(devices) * computed_s
            start, before_s = self.since[name]
            self.since[name] = (start, before_s + computed_s)
            self.left[name] -= speed * step_s / self.work.samples
        self.tell()
        for name in [name for name in self.running if self.left[name] <= _DONE]:
            self.close(name, ended=True)

    def tell(self) -> None:
        """Report the rates of members that have just trained their first epoch."""
        seen = [name for name, then in self.unseen.items() if self.left[name] <= then + _DONE]
        if seen and self.told is not None:
            counts = {name: len(self.running[name]) for name in seen}
            self.told({name: (count, self.work.rates.per_s(name, count)) for name, count in counts.items()})
        for name in seen:
            del self.unseen[name]

    def stop(self) -> None:
        """End the round: the running members wait again, after a checkpoint of all."""
        stopped = list(self.running)
        for name in stopped:
            self.left[name] = float(math.ceil(self.left[name] - _NEAR))  # a partial epoch is trained again
            self.close(name, ended=False)
        waiting = {*self.waiting, *stopped}
        self.waiting = [name for name in self.work.rates.members if name in waiting]
        if stopped:
            self.now_s += self.work.checkpoint_s
            self.saved_s += self.work.devices * self.work.checkpoint_s

    def close(self, name: str, *, ended: bool) -> None:
        start, computed_s = self.since.pop(name)
        devices = self.running.pop(name)
        self.unseen.pop(name, None)
        took_s = self.now_s - start
        self.bars.append(Bar(name, devices, start, self.now_s, computed_s / took_s if took_s else 1.0, ended))
