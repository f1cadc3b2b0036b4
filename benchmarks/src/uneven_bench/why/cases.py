"""The runs of ``uneven bench why``, drawn from a seed."""

import random
from dataclasses import dataclass
from typing import Any

KINDS = ("ddp", "fsdp2", "plain")
# The disturbance of one worker → the answers that are right.
CAUSES: dict[str, tuple[str, ...]] = {
    "quota": ("quota",),
    "stopped": ("stopped",),
    "contention": ("contention",),
    "data-wait": ("data",),
    "data-cpu": ("data",),
    "data-disk": ("data",),
    "batch": ("batch",),
    "blocked": ("blocked",),
    "collection": ("collection",),
    "compilation": ("compilation",),
    "memory": ("memory",),
    "processor": ("processor",),
    "link": ("link",),
    "checkpoint": ("checkpoint",),
    "evaluation": ("evaluation",),
}
PAUSES = ("checkpoint", "evaluation")  # of the causes, those of single long steps
EQUAL = ("quiet", "busy")
WORKERS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class WhyCase:
    """One run."""

    number: int
    kind: str  # of KINDS
    disturbance: str  # of CAUSES or EQUAL
    rank: int  # the disturbed worker; -1 if none is
    severity: float  # 0 … 1, from just visible to strong
    steps: int
    seed: int

    @property
    def words(self) -> str:
        if self.rank < 0:
            return f"{self.kind}, equal workers, {self.disturbance} machine"
        return f"{self.kind}, {self.disturbance} on rank {self.rank} ({self.severity:.2f})"


def drawn(seed: int, causes: int, equal: int) -> list[WhyCase]:
    """Return the runs of a seed: ``causes`` with a disturbed worker, then ``equal`` without one."""
    rng = random.Random(seed)
    pairs = [(cause, kind) for cause in CAUSES for kind in KINDS]
    rng.shuffle(pairs)
    made = []
    for number in range(causes + equal):
        disturbed = number < causes
        cause, kind = pairs[number % len(pairs)] if disturbed else (EQUAL[number % 2], KINDS[number % 3])
        rank = rng.randrange(WORKERS) if disturbed else -1
        chance: dict[str, Any] = {
            "severity": rng.random(),
            "steps": rng.randrange(50, 80),
            "seed": rng.randrange(2**31),
        }
        made.append(WhyCase(number=number, kind=kind, disturbance=cause, rank=rank, **chance))
    return made
