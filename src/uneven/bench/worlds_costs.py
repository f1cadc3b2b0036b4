"""What a step of the trained network costs in core-seconds, from one recorded run."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import replace

from uneven.cluster.spec import ClusterSpec, Workload
from uneven.core.records import Record, StepRecord

_REPORT_CORE_S = 0.0005
"""Giving a report and deciding, on a worker's main thread: 0.4 ms to decide and 0.15 ms to give one, both measured in
place on four workers of two shared cores on 2026-11-20. It decides how often the balancer hears of a change."""

_WARM = 4
"""First iterations, which do not count."""


def workload_of(records: Iterable[Record], spec: ClusterSpec) -> Workload:
    """The workload of ``spec`` with costs in core-seconds: a + b x by least squares over the workers' means.

    Batches must differ between workers, and each must keep its own. The head start that a quota gives to who has waited
    is added to the times, for it is not the work's; see ``Processor.after_rest`` in :mod:`uneven.simulate.compute`.
    """
    steps: dict[int, list[StepRecord]] = {rank: [] for rank in range(len(spec.nodes))}
    for record in records:
        if isinstance(record, StepRecord) and record.iteration >= _WARM:
            steps[record.rank].append(record)
    cores = [node.cores for node in spec.nodes]
    batches = [float(steps[rank][0].batch) for rank in steps]
    waited_s = [statistics.fmean(one.exchange_s - one.transfer_s for one in its) for its in steps.values()]
    ahead_s = [min(node.period_s * (1.0 - node.cores), waited_s[rank]) for rank, node in enumerate(spec.nodes)]
    work_s = [
        (statistics.fmean(one.data_s + one.compute_s for one in its) + ahead_s[rank]) * cores[rank]
        for rank, its in steps.items()
    ]
    moved_s = [statistics.fmean(one.transfer_s for one in its) * cores[rank] for rank, its in steps.items()]
    slope, start = statistics.linear_regression(batches, work_s)
    return replace(
        spec.workload,
        overhead_core_s=max(start, 0.0),
        per_sample_core_s=slope,
        exchange_core_s=statistics.median(moved_s),
        report_core_s=_REPORT_CORE_S,
    )
