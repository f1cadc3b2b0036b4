"""The traffic and computation of a workload's embedding tables and their servers."""

from __future__ import annotations

from dataclasses import dataclass

from uneven.cluster.pure.describe.spec_checks import Amount, Count, Positive, PositiveTime, Several, Time
from uneven.policy.core.tables import check

LIMITS = ("trainers' processors", "latency", "trainers' links", "servers' processors", "servers' links")
"""The possible bottlenecks of trainers with tables on servers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableWork:
    """Embedding tables on servers; for ``uneven plan`` and ``uneven simulate``."""

    features: Count = 0  # bags of each sample; 0 is a model without tables
    ids: Amount = 0.0  # looked up per sample; 0 is one for each feature
    dim: Several = 16  # numbers in a row
    number_bytes: Several = 4  # 4, or 2 if numbers travel as bfloat16
    server_core_s: PositiveTime = 5e-6  # server time per sample, both ways, of all tables; divided among the servers
    message_core_s: Time = 2e-4  # server time per lookup with its gradient, independent of size
    server_cores: Positive = 1.0  # of each server
    server_bit_per_s: Amount = 0.0  # of its link, each way; 0 is unlimited
    server_latency_s: Time = 0.0  # one way, between it and the switch

    def __post_init__(self) -> None:
        check(self, "tables: ")

    def message_s(self, batch: float, servers: int) -> float:
        """Return the seconds of one of ``servers`` for a lookup of ``batch`` samples and its gradient."""
        return (self.message_core_s + batch * self.server_core_s / servers) / self.server_cores

    @property
    def up_bytes(self) -> float:
        """The bytes per sample from a trainer: the ids twice (lookup and gradient), and one row for each bag."""
        return 8 * (self.ids or self.features) + self.features * self.dim * self.number_bytes

    @property
    def down_bytes(self) -> float:
        """The bytes per sample to a trainer."""
        return float(self.features * self.dim * self.number_bytes)

    def link_s(self, samples: float, up_bit_per_s: float | None, down_bit_per_s: float | None) -> tuple[float, float]:
        """Return a link's seconds, up and down, for a lookup and its gradient; rates of 0 and None are unlimited."""
        ways = (self.up_bytes, up_bit_per_s), (self.down_bytes, down_bit_per_s)
        up_s, down_s = (8 * samples * moved / rate if rate else 0.0 for moved, rate in ways)
        return up_s, down_s
