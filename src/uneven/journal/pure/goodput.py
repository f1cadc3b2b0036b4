"""The goodput of an elastic run: the used share of the available capacity."""

from __future__ import annotations

from collections.abc import Sequence

from uneven.journal.pure.member_changes import MemberChanges
from uneven.journal.pure.metrics import Iteration, ratio


def goodput(iterations: Sequence[Iteration], changes: MemberChanges) -> float:
    """Return the samples that counted ÷ those that the members could have computed, 0 … 1; NaN if they never changed.

    A worker's capacity is its rate during data loading and compute, without waits, communication and pauses.
    """
    if not changes or not iterations:
        return float("nan")
    first, last_s = iterations[0], iterations[-1].ended_at_s
    first_s = first.ended_at_s - max(one.total_s for one in first.timings.values())
    samples: dict[int, int] = {}
    busy_s: dict[int, float] = {}
    for one in iterations:
        for rank, timing in one.timings.items():
            samples[rank] = samples.get(rank, 0) + timing.batch
            busy_s[rank] = busy_s.get(rank, 0.0) + timing.local_s
    could = 0.0
    for rank, spans in changes.presence().items():
        there_s = sum(max(0.0, min(until, last_s) - max(since, first_s)) for since, until in spans)
        could += there_s * (ratio(samples.get(rank, 0), busy_s.get(rank, 0.0)) if rank in samples else 0.0)
    return ratio(sum(one.global_batch for one in iterations), could)
