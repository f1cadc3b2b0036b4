"""What the embedding tables of a workload move and compute, and the servers that have them. Pure."""

from __future__ import annotations

from dataclasses import dataclass, fields

from uneven.cluster.checks import not_negative, positive

LIMITS = ("trainers' processors", "latency", "trainers' links", "servers' processors", "servers' links")
"""What can hold up trainers whose tables are on servers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableWork:
    """Embedding tables on servers; for ``uneven plan`` and ``uneven simulate``.

    Attributes:
        features: bags of each sample; 0 is a model without tables.
        ids: that a sample looks up; 0 is one for each feature.
        dim: numbers in a row.
        number_bytes: 4, or 2 where numbers travel as bfloat16.
        server_core_s: of a server, a sample, both ways, of all its tables; it is divided among the servers.
        message_core_s: of a server, a lookup and its gradient, whatever they hold.
        server_cores: of each server.
        server_bit_per_s: of its link, each way; 0 is not limited.
        server_latency_s: one way, between it and the switch.
    """

    features: int = 0
    ids: float = 0.0
    dim: int = 16
    number_bytes: int = 4
    server_core_s: float = 5e-6
    message_core_s: float = 2e-4
    server_cores: float = 1.0
    server_bit_per_s: float = 0.0
    server_latency_s: float = 0.0

    def __post_init__(self) -> None:
        for one in fields(self):
            not_negative("tables", one.name, getattr(self, one.name))
        for key in ("dim", "number_bytes", "server_core_s", "server_cores"):
            positive("tables", key, getattr(self, key))

    def message_s(self, batch: float, servers: int) -> float:
        """What a lookup of so many samples and its gradient take one of so many servers."""
        return (self.message_core_s + batch * self.server_core_s / servers) / self.server_cores

    @property
    def up_bytes(self) -> float:
        """From a trainer, a sample: the ids twice, for the gradient brings them along, and a row for each bag."""
        return 8 * (self.ids or self.features) + self.features * self.dim * self.number_bytes

    @property
    def down_bytes(self) -> float:
        """To a trainer, a sample."""
        return float(self.features * self.dim * self.number_bytes)

    def link_s(self, samples: float, up_bit_per_s: float | None, down_bit_per_s: float | None) -> tuple[float, float]:
        """What a lookup of so many samples and its gradient take a link, up and down; 0 and None are not limited."""
        ways = (self.up_bytes, up_bit_per_s), (self.down_bytes, down_bit_per_s)
        up_s, down_s = (8 * samples * moved / rate if rate else 0.0 for moved, rate in ways)
        return up_s, down_s
