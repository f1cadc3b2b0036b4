"""Define the options of a fleet run and the snapshot that a view shows."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from uneven.errors import ConfigError
from uneven.fleet.engine.fleet_state import RunState
from uneven.fleet.pure.batch_rule import BatchRule
from uneven.fleet.pure.ledger import Ledger
from uneven.fleet.pure.planning.allocate import Closeness
from uneven.fleet.pure.planning.flotillas import ALPHA, Paradigm
from uneven.fleet.timeout import TIMEOUT_S, checked
from uneven.policy.balance import balancers
from uneven.runtime.jobs.heartbeat import Silence


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The settings of a fleet run.

    Attributes:
        buffer: samples in the shared memory, which limits the lead of the fastest member. FLEET's queues hold 2048.
        chunk: samples that a preprocessor makes at a time.
        preprocessors: their number; by default as many as the flotilla's speed needs, at most one per core.
        paradigm: plan all devices again when too few are busy (FLEET-G), or refill free devices (FLEET-L).
        together: all members that fit into memory share one stream and take turns on the CPU slots
            (:class:`~uneven.fleet.pure.planning.flotillas.Together`, ours) instead of FLEET's rule. By default if the
            devices are CPU slots, at least as many as cores, and there are no ``rates``, which only FLEET's rule uses.
        alpha: share of the devices that must be busy for a round to continue.
        closeness: largest difference between the rates of members that share a stream; by default a quarter of the
            fastest. Ours: the paper's 20 samples/s is for members of 21 … 176 samples/s.
        batch_rule: batch and learning rate if a member's number of devices changes; by default the global batch stays.
        balance: the balancer of :class:`uneven.Session` that splits a member's batches among its workers; "even" is
            repeatable bit for bit.
        timeout_s: limit for one sample, one step, a factory's call or the writing of a checkpoint; may be infinite. A
            member that takes longer has failed; a sample that hangs twice ends the run.
        nonfinite: "raise": a member whose loss or weights are not finite has failed. "warn": it trains on, with a note.
        rates: member → samples/s on 1, 2, … devices, if known; otherwise they are measured first.

    Raises:
        ConfigError: a number is out of range, or the balancer does not exist.
    """

    buffer: int = 2048
    chunk: int = 128
    preprocessors: int | None = None
    paradigm: Paradigm = Paradigm.GLOBAL
    together: bool | None = None
    alpha: float = ALPHA
    closeness: Closeness = field(default_factory=lambda: Closeness(delta_share=0.25))
    batch_rule: BatchRule = BatchRule.KEEP
    balance: str = "lb-bsp"
    timeout_s: float = TIMEOUT_S
    nonfinite: Literal["raise", "warn"] = "raise"
    rates: Mapping[str, Sequence[float]] | None = None

    def __post_init__(self) -> None:
        if self.chunk < 1 or self.buffer < 2 * self.chunk:
            raise ConfigError(f"buffer={self.buffer}, chunk={self.chunk}: give at least two chunks of at least 1")
        if self.preprocessors is not None and self.preprocessors < 1:
            raise ConfigError(f"preprocessors={self.preprocessors}: give at least one")
        if self.nonfinite not in ("raise", "warn"):
            raise ConfigError(f'nonfinite={self.nonfinite!r}: give "raise" or "warn"')
        checked(self.timeout_s)
        balancers.resolve(self.balance)  # raises here instead of later in each worker


@dataclass(frozen=True, slots=True)
class RunSnapshot:
    """The state of a run as a view shows it."""

    state: RunState
    running: Mapping[str, int]  # members that train now → number of their devices
    ledger: Ledger  # positions in the shared buffer
    preprocessors: int
    max_epochs: int
    # member → its process ids; "" → those of the preprocessors
    processes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    # busy members and preprocessors → how long they have been silent
    quiet: Mapping[str, Silence] = field(default_factory=dict)


Show = Callable[[RunSnapshot], None]
