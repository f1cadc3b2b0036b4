"""All that workers share which take samples at their own pace."""

from __future__ import annotations

from dataclasses import dataclass

from uneven.run.own_pace.barrier import EvaluationBarrier
from uneven.run.own_pace.sample_counter import StoredSampleCounter
from uneven.run.own_pace.shutdown import ShutdownHandshake
from uneven.run.own_pace.store import SessionStore


@dataclass(frozen=True, slots=True)
class OwnPace:
    """What one worker has of it."""

    rank: int
    counter: StoredSampleCounter
    barrier: EvaluationBarrier
    shutdown: ShutdownHandshake


def make_own_pace(rank: int, size: int, timeout_s: float, *, ahead: bool) -> OwnPace:
    """For one worker of so many; all ranks make theirs in the same order.

    Args:
        timeout_s: how long the others may keep this worker waiting.
        ahead: see :class:`uneven.data.supply.SampleCounter`.
    """
    store = SessionStore(rank, size)
    counter = StoredSampleCounter(store, timeout_s, ahead=ahead)
    return OwnPace(rank, counter, EvaluationBarrier(store, counter, timeout_s), ShutdownHandshake(store))
