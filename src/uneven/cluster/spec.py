"""A cluster in words: nodes, links, and what happens to them. One description for three worlds. Pure.

The same object is emulated with real processes (:mod:`uneven.emulate`), simulated in virtual time
(:mod:`uneven.simulate`) and compared with a real run. Time is counted from the start of the training.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, field
from enum import Enum

from uneven.core.cost import Affine, Cost
from uneven.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A quantity over time: one value for each step of time, from the start again when it is over.

    Attributes:
        values: at least one.
        step_s: seconds that each value lasts, as recorded; infinite for what never changes.
        speedup: how many times faster than recorded it is replayed.
        source: where it comes from, for messages and reports.
    """

    values: tuple[float, ...]
    step_s: float = math.inf
    speedup: float = 1.0
    source: str = ""

    def __post_init__(self) -> None:
        if not self.values or not all(math.isfinite(value) and value >= 0 for value in self.values):
            raise ConfigError(f"trace {self.source or self.values}: it needs values, none of them negative or infinite")
        if not (self.step_s > 0 and self.speedup > 0):
            raise ConfigError(
                f"trace {self.source or self.values}: step_s = {self.step_s} and speedup = {self.speedup}: "
                f"both must be positive"
            )

    @property
    def constant(self) -> bool:
        """Whether it never changes."""
        return math.isinf(self.step_s) or len(set(self.values)) == 1

    def at(self, time_s: float) -> float:
        """The value at a time, in seconds from the start."""
        if self.constant:
            return self.values[0]
        return self.values[int(time_s * self.speedup / self.step_s) % len(self.values)]

    def next_change_s(self, time_s: float) -> float:
        """The first time after ``time_s`` at which another step begins; infinite for a constant."""
        if self.constant:
            return math.inf
        lasts_s = self.step_s / self.speedup
        steps = math.floor(time_s / lasts_s) + 1
        return steps * lasts_s if steps * lasts_s > time_s else (steps + 1) * lasts_s


def steady(value: float) -> Trace:
    """What never changes."""
    return Trace(values=(value,))


@dataclass(frozen=True, slots=True)
class Saturating:
    """Γ(x) = max(floor, overhead + x · per_sample): below saturation a smaller batch gains nothing.

    The curve of LB-BSP's 2018 poster (specification §1.1, §1.8); its fitted form there is ours.
    """

    floor_s: float
    overhead_s: float
    per_sample_s: float

    def seconds(self, samples: int) -> float:
        """Local time for a batch of ``samples``."""
        return max(self.floor_s, self.overhead_s + self.per_sample_s * samples)


@dataclass(frozen=True, slots=True)
class Measured:
    """Γ through measured points, straight between them and on from the last two; flat before the first.

    Attributes:
        samples: batch sizes, ascending, at least two.
        seconds_each: local time at each of them, not descending.
    """

    samples: tuple[int, ...]
    seconds_each: tuple[float, ...]

    def seconds(self, samples: int) -> float:
        """Local time for a batch of ``samples``."""
        if samples <= self.samples[0]:
            return self.seconds_each[0]
        right = min(bisect_right(self.samples, samples), len(self.samples) - 1)
        x0, x1 = self.samples[right - 1], self.samples[right]
        y0, y1 = self.seconds_each[right - 1], self.seconds_each[right]
        return y0 + (y1 - y0) * (samples - x0) / (x1 - x0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A machine with one worker on it.

    Attributes:
        cores: processor capacity that the worker has while nothing else runs; 0.6 is a share of one core.
        share: part of ``cores`` that is there, over time, 0 … 1.
        load: competing processes that are always busy, over time; they take their fair part of ``cores``.
        memory_bytes: limit; None is no limit.
        up_bit_per_s, down_bit_per_s: of its link, over time; None is not limited.
        latency_s: one way, between this node and the switch that it hangs on.
        site: where it is.
        cost: Γ(x) of this node's device with all of its ``cores``, for the simulator; None derives it from the
            workload's core-seconds.
        jitter: relative standard deviation of single compute times, log-normal, for the simulator.
        memory_samples: largest batch that fits its device; None is no limit.
    """

    name: str
    cores: float = 1.0
    share: Trace = field(default_factory=lambda: steady(1.0))
    load: Trace = field(default_factory=lambda: steady(0.0))
    memory_bytes: int | None = None
    up_bit_per_s: Trace | None = None
    down_bit_per_s: Trace | None = None
    latency_s: float = 0.0
    site: str = ""
    cost: Cost | None = None
    jitter: float = 0.0
    memory_samples: int | None = None

    def available(self, time_s: float) -> float:
        """Part of this node's full speed that one worker gets at a time, 0 … 1.

        Of the capacity that is there, every busy process has the same part, and none can use more than a core
        of it (the worker is taken to compute in one thread unless it has several cores to itself).
        """
        capacity = self.cores * self.share.at(time_s)
        rivals = self.load.at(time_s)
        if rivals <= 0:
            return capacity / self.cores
        return min(capacity / (1 + rivals), max(1.0, self.cores - rivals)) / self.cores

    def next_change_s(self, time_s: float) -> float:
        """When :meth:`available` may change next."""
        return min(self.share.next_change_s(time_s), self.load.next_change_s(time_s))


class Do(Enum):
    """What can happen to a node."""

    SLOW = "slow"  # its share of processor time is multiplied by ``factor``
    CUT_LINK = "cut_link"  # its bandwidth, both ways, is multiplied by ``factor`` or becomes ``bit_per_s``
    KILL = "kill"  # its worker dies without a word
    LEAVE = "leave"  # its worker goes, and says so
    JOIN = "join"  # a worker starts there; before its first join a node that has one is not a member


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happens to one node, at a time or when an iteration starts.

    Attributes:
        for_s: how long a slow-down or a cut lasts; infinite is for good.
    """

    do: Do
    node: str
    at_s: float | None = None
    at_iteration: int | None = None
    factor: float | None = None
    bit_per_s: float | None = None
    for_s: float = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteLink:
    """The line between two sites, shared by all of their nodes; the same capacity each way."""

    between: tuple[str, str]
    bit_per_s: Trace
    latency_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What one iteration computes and moves; for the simulator, where no script runs.

    Attributes:
        global_batch: X, samples.
        gradient_bytes: what an exchange of the whole model moves, before any compression.
        overhead_core_s, per_sample_core_s: core-seconds of an iteration, Γ(x) on one core; for nodes without ``cost``.
        exchange_core_s: core-seconds that a worker's own side of an exchange takes.
        hidden: part of the compute time under which an exchange can hide; about two thirds of it is the backward
            pass, and the first bucket is ready only some way into that.
        epoch_samples: length of the data set.
    """

    global_batch: int = 256
    gradient_bytes: int = 4_000_000
    overhead_core_s: float = 0.005
    per_sample_core_s: float = 0.0005
    exchange_core_s: float = 0.0
    hidden: float = 0.5
    epoch_samples: int = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """A whole cluster.

    Attributes:
        assumptions: what in it is not known but taken to be so, in sentences, with where it comes from.
    """

    name: str
    nodes: tuple[Node, ...]
    about: str = ""
    events: tuple[Event, ...] = ()
    links: tuple[SiteLink, ...] = ()
    workload: Workload = field(default_factory=Workload)
    assumptions: tuple[str, ...] = ()

    def cost(self, node: Node) -> Cost:
        """Γ(x) of a node with all of its cores."""
        if node.cost is not None:
            return node.cost
        return Affine(self.workload.overhead_core_s / node.cores, self.workload.per_sample_core_s / node.cores)
