"""The cost of a step of the network in core-seconds, by the processor time of recorded runs.

A processor's speed is not part of a description, and on a shared machine it changes from run to run. So the shape of
the cost, a + b x, comes from one run with unequal batches, and its scale from the run to compare with. The simulator
computes times, waits, transfers and splits.
"""

import math
import statistics
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

from uneven.cluster.pure.describe.spec import ClusterSpec, Workload
from uneven.policy.core.records import Record, StepRecord
from uneven_bench.harness.steps import steps_of

_REPORT_CORE_S = 0.0005
"""Core-seconds on a worker's main thread: 0.4 ms to decide and 0.15 ms to give a report, both measured in place on four
workers of two shared cores on 2026-11-20. It decides the frequency of reports."""

_WARM = 4  # first iterations, which do not count
_TO_DEVIATION = 1.4826  # from the median absolute deviation to the standard deviation of a normal distribution


def shape_of(records: Iterable[Record], workload: Workload) -> Workload:
    """Return ``workload`` with costs in core-seconds: a + b x by least squares over the workers' means. Batches must
    differ between workers, and each must be constant."""
    steps = steps_of(records, _WARM)
    batches = [float(its[0].batch) for its in steps.values()]
    work_s = [statistics.fmean(one.local_cpu_s for one in its) for its in steps.values()]
    slope, start = statistics.linear_regression(batches, work_s)
    return replace(
        workload,
        overhead_core_s=max(start, 0.0),
        per_sample_core_s=slope,
        exchange_core_s=statistics.median(
            statistics.fmean(one.exchange_cpu_s for one in its) for its in steps.values()
        ),
        report_core_s=_REPORT_CORE_S,
    )


def as_in(spec: ClusterSpec, records: Iterable[Record], since: int) -> ClusterSpec:
    """Return the description with costs and noise of a run of it, from iteration ``since`` on."""
    steps = steps_of(records, since)
    nodes = []
    for rank, node in enumerate(spec.nodes):
        own = replace(spec, workload=_scaled(spec.workload, steps[rank]))
        nodes.append(replace(node, cost=own.cost(node), jitter=_jitter(steps[rank])))
    return replace(spec, nodes=tuple(nodes))


def own_sides(spec: ClusterSpec, records: Iterable[Record], since: int) -> dict[int, float]:
    """Return rank → seconds of the whole node for its side of an exchange in a run, from iteration ``since`` on. They
    differ: a worker on a narrow link, or between others, wakes up more often."""
    steps = steps_of(records, since)
    return {
        rank: statistics.fmean(one.exchange_cpu_s for one in its) / min(1.0, spec.nodes[rank].cores)
        for rank, its in steps.items()
    }


def _scaled(workload: Workload, its: list[StepRecord]) -> Workload:
    a_s, b_s = workload.overhead_core_s, workload.per_sample_core_s
    scale = sum(one.local_cpu_s for one in its) / sum(a_s + b_s * one.batch for one in its)
    return replace(workload, overhead_core_s=scale * a_s, per_sample_core_s=scale * b_s)


def _jitter(its: list[StepRecord]) -> float:
    """Return the relative deviation of a worker's processor time between neighbours, without lasting changes. Step
    times would include the effect of the quota, which the simulator computes."""
    apart = [
        abs(later.local_cpu_s - earlier.local_cpu_s) / (later.local_cpu_s + earlier.local_cpu_s) * 2.0
        for earlier, later in pairwise(its)
        if earlier.batch == later.batch
    ]
    return _TO_DEVIATION * statistics.median(apart) / math.sqrt(2.0) if apart else 0.0
