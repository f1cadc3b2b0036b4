"""What a step of the trained network costs in core-seconds, by the processor time that recorded runs used.

How fast a processor is on the day is no part of a description, and on a shared machine it changes from run to run. So
the shape of the cost, a + b x, is taken from one run in which batches differ, and its scale from the run that a
simulation is to be compared with. Times, waits, transfers and splits are left for the simulator to say.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

from uneven.cluster.pure.describe.spec import ClusterSpec, Workload
from uneven.policy.core.records import Record, StepRecord

_REPORT_CORE_S = 0.0005
"""Giving a report and deciding, on a worker's main thread: 0.4 ms to decide and 0.15 ms to give one, both measured in
place on four workers of two shared cores on 2026-11-20. It decides how often the balancer hears of a change."""

_WARM = 4
"""First iterations, which do not count."""

_TO_DEVIATION = 1.4826
"""From the median absolute deviation to the standard deviation of a normal distribution."""


def shape_of(records: Iterable[Record], workload: Workload) -> Workload:
    """``workload`` with costs in core-seconds: a + b x by least squares over the workers' means.

    Batches must differ between workers, and each must keep its own.
    """
    steps = _by_rank(records, _WARM)
    batches = [float(its[0].batch) for its in steps.values()]
    work_s = [statistics.fmean(one.local_cpu_s for one in its) for its in steps.values()]
    slope, start = statistics.linear_regression(batches, work_s)
    return replace(
        workload,
        overhead_core_s=max(start, 0.0),
        per_sample_core_s=slope,
        exchange_core_s=_exchange_core_s(steps),
        report_core_s=_REPORT_CORE_S,
    )


def as_in(spec: ClusterSpec, records: Iterable[Record], since: int) -> ClusterSpec:
    """The description with its costs as dear and as noisy as they were in a run of it, from an iteration on."""
    steps = _by_rank(records, since)
    nodes = []
    for rank, node in enumerate(spec.nodes):
        own = replace(spec, workload=_scaled(spec.workload, steps[rank]))
        nodes.append(replace(node, cost=own.cost(node), jitter=_jitter(steps[rank])))
    return replace(spec, nodes=tuple(nodes))


def own_sides(spec: ClusterSpec, records: Iterable[Record], since: int) -> dict[int, float]:
    """Rank → seconds of the whole node that its own side of an exchange took in a run, from an iteration on.

    Not the same for all: who waits on a narrow link, or in the midst of others, wakes up more often.
    """
    steps = _by_rank(records, since)
    return {
        rank: statistics.fmean(one.exchange_cpu_s for one in its) / min(1.0, spec.nodes[rank].cores)
        for rank, its in steps.items()
    }


def _scaled(workload: Workload, its: list[StepRecord]) -> Workload:
    a_s, b_s = workload.overhead_core_s, workload.per_sample_core_s
    scale = sum(one.local_cpu_s for one in its) / sum(a_s + b_s * one.batch for one in its)
    return replace(workload, overhead_core_s=scale * a_s, per_sample_core_s=scale * b_s)


def _jitter(its: list[StepRecord]) -> float:
    """Relative deviation of a worker's processor time, from neighbour to neighbour: lasting changes do not count.

    Not of its steps' times, for these are uneven because of the quota, which is the simulator's to find.
    """
    apart = [
        abs(later.local_cpu_s - earlier.local_cpu_s) / (later.local_cpu_s + earlier.local_cpu_s) * 2.0
        for earlier, later in pairwise(its)
        if earlier.batch == later.batch
    ]
    return _TO_DEVIATION * statistics.median(apart) / math.sqrt(2.0) if apart else 0.0


def _by_rank(records: Iterable[Record], since: int) -> dict[int, list[StepRecord]]:
    steps: dict[int, list[StepRecord]] = {}
    for record in records:
        if isinstance(record, StepRecord) and record.iteration >= since:
            steps.setdefault(record.rank, []).append(record)
    return steps


def _exchange_core_s(steps: dict[int, list[StepRecord]]) -> float:
    return statistics.median(statistics.fmean(one.exchange_cpu_s for one in its) for its in steps.values())
