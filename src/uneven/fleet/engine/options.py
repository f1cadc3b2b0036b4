"""How an ensemble is trained, and what is shown of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from uneven.balance import balancers
from uneven.errors import ConfigError
from uneven.fleet.engine.state import RunState
from uneven.fleet.member.batch_rule import BatchRule
from uneven.fleet.planning.allocate import Closeness
from uneven.fleet.planning.rounds import ALPHA, Paradigm
from uneven.fleet.stream.ledger import Ledger
from uneven.fleet.timeout import TIMEOUT_S, checked
from uneven.jobs.pulse import Silence


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How to train, not what.

    Attributes:
        buffer: samples that the shared memory holds; how far the fastest member may lead. FLEET's queues hold 2048.
        chunk: samples that a preprocessor makes in one go.
        preprocessors: how many; by default as many as the flotilla's pace needs, at most one for each core.
        paradigm: plan all devices anew when too few are busy (FLEET-G), or refill those that become free (FLEET-L).
        together: all members that memory holds share one stream and take turns on the CPU slots
            (:class:`~uneven.fleet.planning.together.Together`, ours) instead of FLEET's rule. By default where the
            devices are CPU slots, no fewer than there are cores, and no ``rates`` are given, which are for FLEET's
            rule.
        alpha: the share of the devices that must be busy for a round to go on.
        closeness: how near the rates of those who share a stream are; by default a quarter of the fastest. Ours: the
            paper's 20 samples/s is for members of 21 … 176 samples/s.
        batch_rule: what becomes of batch and learning rate of a member whose number of devices changes; by default its
            global batch is kept.
        balance: how the batches of a member on several devices are split among its workers: a balancer of
            :class:`uneven.Session`; "even" repeats to the bit.
        timeout_s: how long one sample, one step, a factory's call or the writing of a checkpoint may take; infinite
            waits for ever. A member that takes longer has failed; a sample that hangs twice ends the run.
        nonfinite: "raise": a member whose loss or weights are no longer finite numbers has failed. "warn": it is
            trained on, and its ``note`` says so.
        rates: member → samples/s on 1, 2, … devices, if they are known; otherwise they are measured first.

    Raises:
        ConfigError: a number that makes no sense, or a balancer that does not exist.
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
            raise ConfigError(f"buffer={self.buffer}, chunk={self.chunk}: the buffer holds at least two chunks of one")
        if self.preprocessors is not None and self.preprocessors < 1:
            raise ConfigError(f"preprocessors={self.preprocessors}: at least one has to make the samples")
        if self.nonfinite not in ("raise", "warn"):
            raise ConfigError(f'nonfinite={self.nonfinite!r}: give "raise" or "warn"')
        checked(self.timeout_s)
        balancers.resolve(self.balance)  # says now what its workers would say


@dataclass(frozen=True, slots=True)
class RunSnapshot:
    """What a face may show: the state, who trains on how many devices now, and the book of the shared buffer.

    Attributes:
        processes: member → the numbers of its processes; "" → those of the preprocessors.
        quiet: members and preprocessors that are busy → since when nothing was heard of them.
    """

    state: RunState
    running: Mapping[str, int]
    ledger: Ledger
    preprocessors: int
    max_epochs: int
    processes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    quiet: Mapping[str, Silence] = field(default_factory=dict)


Show = Callable[[RunSnapshot], None]
