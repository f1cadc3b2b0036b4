"""What a recorded run says about the costs of its workers, so that it can be played again another way. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from uneven.cluster.spec import ClusterSpec, Node, Workload
from uneven.core.cost import Affine, Cost
from uneven.core.records import Record, RunRecord, ScalarRecord, StepRecord
from uneven.errors import ConfigError
from uneven.journal.refreshes import Refreshes

_VARIED = 0.05
"""Relative spread of its batches from which a worker's fixed costs can be told from those of a sample. Ours."""

_LEAST_STEPS = 3
"""Steps that a worker must have taken. Ours."""

TO_DEVIATION = 1.4826
"""From the median absolute deviation to the standard deviation of a normal distribution."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCosts:
    """What was learnt from a run; position i belongs to rank i.

    Attributes:
        costs: Γ(x) of each worker, as slow as it was in that run.
        exchange_s: what its own side of an exchange took, median.
        deviations: relative standard deviation of its compute times around Γ(x), robust against outliers.
        global_batch: largest of the run.
        epoch_samples: samples of the first epoch if the run came to a second one, else of the whole run.
        iterations: that the run took.
        preconditioned: whether a preconditioner has refreshed anything in it; what it took is in the costs.
    """

    name: str
    costs: tuple[Cost, ...]
    exchange_s: tuple[float, ...]
    deviations: tuple[float, ...]
    global_batch: int
    epoch_samples: int
    iterations: int
    preconditioned: bool = False


def costs_from_journal(records: Iterable[Record], fixed_s: Mapping[int, float] | None = None) -> RecordedCosts:
    """Fit each worker's costs to the steps of its newest start.

    The first step warms up and does not count. Γ is affine, by least squares over the median time at each batch
    size. A worker whose batches hardly varied gets the fixed part that it is given, and the rest of its time is
    proportional to the batch.

    Args:
        records: of a run, for instance ``journal.read(run).records()``.
        fixed_s: rank → overhead of an iteration where the run cannot tell; 0 by default.

    Raises:
        ConfigError: too few steps, naming the rank.
    """
    records = list(records)
    starts, steps = sorted_steps(records)
    ranks = max((*starts, *steps), default=-1) + 1
    if not ranks:
        raise ConfigError("the recorded run has no steps: name a run directory with a journal in it")
    for rank in range(ranks):
        if len(steps.get(rank, ())) <= _LEAST_STEPS:
            raise ConfigError(
                f"rank {rank} has {len(steps.get(rank, ()))} recorded steps with samples: costs can be learnt from "
                f"more than {_LEAST_STEPS}; record a longer run, or describe the node in a cluster file"
            )
    costs = [_affine(steps[rank][1:], (fixed_s or {}).get(rank, 0.0)) for rank in range(ranks)]
    longest = max(steps.values(), key=len)
    first = [step for step in longest if step.epoch == longest[0].epoch]
    return RecordedCosts(
        name=next(iter(starts.values())).run if starts else "recorded",
        costs=tuple(costs),
        exchange_s=tuple(median(step.transfer_s for step in steps[rank][1:]) for rank in range(ranks)),
        deviations=tuple(_deviation(steps[rank][1:], costs[rank]) for rank in range(ranks)),
        global_batch=max(step.global_batch for step in longest),
        epoch_samples=sum(step.global_batch for step in first),
        iterations=longest[-1].iteration - longest[0].iteration + 1,
        preconditioned=any(Refreshes().add(one) for one in records if isinstance(one, ScalarRecord)),
    )


def described(costs: RecordedCosts) -> ClusterSpec:
    """A cluster as the run saw it: one node for each rank, with no limits but its costs."""
    nodes = tuple(
        Node(name=f"rank{rank}", cost=cost, jitter=costs.deviations[rank]) for rank, cost in enumerate(costs.costs)
    )
    workload = Workload(global_batch=costs.global_batch, epoch_samples=costs.epoch_samples, exchange_core_s=0.0)
    return ClusterSpec(
        name=costs.name or "recorded",
        nodes=nodes,
        about="As a recorded run saw it.",
        workload=workload,
        assumptions=("Transfers take no longer than each worker's own side of them did in the recorded run.",),
    )


def with_costs(spec: ClusterSpec, costs: RecordedCosts) -> tuple[ClusterSpec, dict[int, float]]:
    """A description with the recorded costs in place of its own, and each rank's own side of an exchange, seconds.

    What was recorded on a node of which only a part was there is brought to the whole node by that part at the
    start, so that the description's share and load do not slow it down a second time. A preconditioner of the
    description is left out where the run had one, as its costs hold what that took.

    Raises:
        ConfigError: the run had another number of workers.
    """
    if len(spec.nodes) != len(costs.costs):
        raise ConfigError(
            f"cluster {spec.name!r} has {len(spec.nodes)} nodes and the recorded run had {len(costs.costs)} workers: "
            f"name a run of as many workers, or leave the cluster out to have one made from the run"
        )
    parts = [node.available(0.0) for node in spec.nodes]
    nodes = tuple(
        replace(node, cost=_scaled(cost, part), jitter=deviation)
        for node, cost, part, deviation in zip(spec.nodes, costs.costs, parts, costs.deviations, strict=True)
    )
    workload = replace(spec.workload, global_batch=costs.global_batch)
    exchange_s = {rank: own_s * part for rank, (own_s, part) in enumerate(zip(costs.exchange_s, parts, strict=True))}
    own = None if costs.preconditioned else spec.preconditioner
    return replace(spec, nodes=nodes, workload=workload, preconditioner=own), exchange_s


def sorted_steps(records: Iterable[Record]) -> tuple[dict[int, RunRecord], dict[int, list[StepRecord]]]:
    """By rank, the newest start and the steps with samples since then."""
    starts: dict[int, RunRecord] = {}
    steps: dict[int, list[StepRecord]] = {}
    for record in records:
        if isinstance(record, RunRecord):
            starts[record.rank] = record
            steps[record.rank] = []
        elif isinstance(record, StepRecord) and record.batch > 0:
            steps.setdefault(record.rank, []).append(record)
    return starts, steps


def _local_s(step: StepRecord) -> float:
    """What a step takes its worker, whose threads may take several side by side."""
    return (step.data_s + step.compute_s) / step.threads


def _affine(steps: list[StepRecord], fixed_s: float) -> Affine:
    by_batch: dict[int, list[float]] = {}
    for step in steps:
        by_batch.setdefault(step.batch, []).append(_local_s(step))
    x = np.array(list(by_batch), float)
    y = np.array([median(times) for times in by_batch.values()])
    weights = np.array([len(times) for times in by_batch.values()], float)
    middle, typical_s = float(np.average(x, weights=weights)), float(np.average(y, weights=weights))
    spread = math.sqrt(float(np.average((x - middle) ** 2, weights=weights)))
    if spread > _VARIED * middle:
        slope = float(np.average((x - middle) * (y - typical_s), weights=weights)) / spread**2
        if slope > 0.0:
            overhead_s = typical_s - slope * middle
            return Affine(overhead_s, slope) if overhead_s > 0.0 else Affine(0.0, typical_s / middle)
    overhead_s = min(fixed_s, typical_s)
    return Affine(overhead_s, (typical_s - overhead_s) / middle)


def _deviation(steps: list[StepRecord], cost: Affine) -> float:
    off = [_local_s(step) / cost.seconds(step.batch) for step in steps if cost.seconds(step.batch) > 0]
    centre = median(off)
    return TO_DEVIATION * median(abs(value - centre) for value in off) / centre if centre > 0 else 0.0


def _scaled(cost: Cost, part: float) -> Cost:
    if not isinstance(cost, Affine):
        return cost
    return Affine(cost.overhead_s * part, cost.per_sample_s * part)
