"""A stretch of a step between two points at which workers wait for each other. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorkPhase:
    """What each worker computes, and then sends.

    Attributes:
        core_s: of each worker, seconds of one core.
        sent_bytes: [from][to]; empty for none. Who is sent something waits for it before the next phase.
        late: whether nobody waits for it.
        ring_bytes: of a sum over all workers at the end of the phase, which all wait for.
    """

    core_s: tuple[float, ...]
    sent_bytes: Sequence[Sequence[float]] = ()
    late: bool = False
    ring_bytes: float = 0.0

    @property
    def all_bytes(self) -> float:
        """What all workers together send, without the sum."""
        return sum(map(sum, self.sent_bytes))
