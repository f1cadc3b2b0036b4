"""The costs of a recorded run's workers, used to simulate it with changes."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from uneven.cluster.pure.describe.spec import ClusterSpec, Node, Workload
from uneven.cluster.pure.describe.trace import SHORTEST_S, Trace
from uneven.errors import ConfigError
from uneven.journal.pure.member_changes import of_newest_workers
from uneven.journal.pure.refreshes import Refreshes
from uneven.policy.core.cost import Affine, Cost
from uneven.policy.core.records import SHARE, Record, RunRecord, ScalarRecord, StepRecord

_VARIED = 0.05  # relative spread of batches above which fixed and per-sample costs can be separated [default]
_LEAST_STEPS = 3  # of each worker [default]
TO_DEVIATION = 1.4826  # from the median absolute deviation to the standard deviation of a normal distribution


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCosts:
    """The costs learned from a run; position i belongs to rank i."""

    name: str
    costs: tuple[Cost, ...]  # Γ(x) of each worker, at its speed in that run
    exchange_s: tuple[float, ...]  # its own side of an exchange, median
    deviations: tuple[float, ...]  # of compute times around Γ(x), relative and robust against outliers
    global_batch: int  # the run's largest
    epoch_samples: int  # of the first epoch, or of the whole run if it did not reach a second one
    iterations: int
    preconditioned: bool = False  # whether a preconditioner took part, so that the costs include it


def costs_from_journal(records: Iterable[Record], fixed_s: Mapping[int, float] | None = None) -> RecordedCosts:
    """Fit each worker's costs to the steps of its newest start, without the first step, which warms up.

    Γ is affine, by least squares over the median time at each batch size. A worker whose batches hardly varied gets the
    given fixed part (``fixed_s``: rank → seconds), and the rest of its time is proportional to the batch.

    Raises:
        ConfigError: too few steps; names the rank.
    """
    records = of_newest_workers(records)
    starts, steps = sorted_steps(records)
    ranks = max((*starts, *steps), default=-1) + 1
    if not ranks:
        raise ConfigError("the recorded run has no steps: name a run directory with a journal in it")
    for rank in range(ranks):
        if len(steps.get(rank, ())) <= _LEAST_STEPS:
            raise ConfigError(
                f"rank {rank} has {len(steps.get(rank, ()))} recorded steps with samples: fitting a cost needs "
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
    """Return a description with the recorded costs, and each rank's own side of an exchange in seconds.

    Raises:
        ConfigError: the run had another number of workers.
    """
    if len(spec.nodes) != len(costs.costs):
        raise ConfigError(
            f"cluster {spec.name!r} has {len(spec.nodes)} nodes and the recorded run had {len(costs.costs)} "
            "workers: name a run with the same number, or leave the cluster out to derive it from the run"
        )
    # The share and load of the description apply again in the simulation, so scale the costs back to the whole node.
    parts = [node.available(0.0) for node in spec.nodes]
    nodes = tuple(
        replace(node, cost=_scaled(cost, part), jitter=deviation)
        for node, cost, part, deviation in zip(spec.nodes, costs.costs, parts, costs.deviations, strict=True)
    )
    workload = replace(spec.workload, global_batch=costs.global_batch)
    exchange_s = {rank: own_s * part for rank, (own_s, part) in enumerate(zip(costs.exchange_s, parts, strict=True))}
    # The recorded costs already include the preconditioner's work.
    own = None if costs.preconditioned else spec.preconditioner
    return replace(spec, nodes=nodes, workload=workload, preconditioner=own), exchange_s


def sorted_steps(records: Iterable[Record]) -> tuple[dict[int, RunRecord], dict[int, list[StepRecord]]]:
    """Return each rank's newest start and its steps with samples since then."""
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
    # Threads take several steps at the same time.
    return (step.data_s + step.compute_s) / step.threads


def _affine(steps: list[StepRecord], fixed_s: float) -> Affine:
    # Medians per batch size make the fit robust against single slow steps.
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


_STEPS, _STRETCHES = 5, 500  # steps per value of the speed, about, and the most values [default]
_SLOWEST = 1e-3  # lowest speed relative to the best; anything slower is an outlier of a single step


def recorded_shares(records: Iterable[Record]) -> dict[int, float]:
    """Return rank → cores that its launcher limited it to, in the newest start; empty unless known for every worker."""
    starts = {one.rank: one for one in records if isinstance(one, RunRecord)}
    found = {rank: float(one.settings.get(SHARE) or 0.0) for rank, one in starts.items()}
    return found if all(share > 0.0 for share in found.values()) else {}


def with_recorded_speeds(
    spec: ClusterSpec, records: Iterable[Record], shares: Mapping[int, float] | None = None
) -> tuple[ClusterSpec, dict[int, float]]:
    """Return a recorded run's cluster with each node's speed over time, and rank → seconds of its side of an exchange.

    In a stretch of time, a node's speed is the median of Γ(x) over the time of its steps. The fastest stretch is the
    whole node; in the others a part of it is available. The exchange seconds are for the whole node.

    Args:
        spec: from :func:`uneven.cluster.pure.simulate.described` of the same run; node i is rank i.
        shares: rank → cores that it was limited to.
    """
    shares = shares or {}
    steps = {rank: found[1:] for rank, found in sorted_steps(records)[1].items()}
    ends_s = [step.ended_at_s for found in steps.values() for step in found]
    start_s, end_s = min(ends_s), max(ends_s)
    count = min(_STRETCHES, max(1, min(map(len, steps.values())) // _STEPS))
    step_s = max(SHORTEST_S, (end_s - start_s) / count)
    nodes, exchange_s = [], {}
    for rank, node in enumerate(spec.nodes):
        stretches: list[list[StepRecord]] = [[] for _ in range(count)]
        for step in steps[rank]:
            stretches[min(count - 1, int((step.ended_at_s - start_s) / step_s))].append(step)
        found, exchange_s[rank] = _node(node, stretches, step_s, shares.get(rank, math.inf))
        nodes.append(found)
    return replace(spec, nodes=tuple(nodes)), exchange_s


def _node(node: Node, stretches: Sequence[Sequence[StepRecord]], step_s: float, cores: float) -> tuple[Node, float]:
    cost = node.cost
    if not isinstance(cost, Affine):
        raise ConfigError(
            f"node {node.name!r}: its cost is unknown: fit it from a run, or describe it in the cluster file"
        )
    found = [
        [cost.seconds(one.batch) / took_s for one in steps if (took_s := _took_s(one, cores)) > 0.0]
        for steps in stretches
    ]
    everywhere = [value for values in found for value in values]
    speeds, before = [], median(everywhere or [1.0])
    for values in found:
        before = median(values) if values else before
        speeds.append(before)
    best = max(speeds)
    parts = tuple(max(_SLOWEST, speed / best) for speed in speeds)
    whole = Affine(cost.overhead_s / best, cost.per_sample_s / best)
    off = [abs(value / speed - 1) for values, speed in zip(found, speeds, strict=True) for value in values]
    own_s = [
        max(one.transfer_s, one.exchange_cpu_s / cores) * part
        for steps, part in zip(stretches, parts, strict=True)
        for one in steps
    ]
    # After the end of the run its speeds are repeated backwards, so that they do not jump there.
    share = Trace(values=parts + parts[::-1], step_s=step_s, source="recorded speeds")
    return replace(node, cost=whole, jitter=TO_DEVIATION * median(off or [0.0]), share=share), median(own_s or [0.0])


def _took_s(step: StepRecord, cores: float) -> float:
    # A worker that waits for others saves up processor time, and then computes faster than its share for a while. In
    # the long run a step takes at least its processor seconds over the share.
    return max((step.data_s + step.compute_s) / step.threads, step.local_cpu_s / cores)
