"""How fast the workers of a recorded run were at each time, for a run that is played another way. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median

from uneven.cluster.spec import ClusterSpec, Node
from uneven.cluster.trace import SHORTEST_S, Trace
from uneven.core.cost import Affine
from uneven.core.records import SHARE, Record, RunRecord, StepRecord
from uneven.errors import ConfigError
from uneven.simulate.costs import TO_DEVIATION, sorted_steps

_STEPS, _STRETCHES = 5, 500
"""Steps in which a speed counts as one value, about, and the most such stretches of time that there are. Ours."""

_SLOWEST = 1e-3
"""Part of its best speed that a worker is taken to keep; slower ones are outliers of a single step."""


def recorded_shares(records: Iterable[Record]) -> dict[int, float]:
    """Rank → cores that its launcher held it to, in the newest start; empty unless that is known of every worker."""
    starts = {one.rank: one for one in records if isinstance(one, RunRecord)}
    found = {rank: float(one.settings.get(SHARE) or 0.0) for rank, one in starts.items()}
    return found if all(share > 0.0 for share in found.values()) else {}


def with_recorded_speeds(
    spec: ClusterSpec, records: Iterable[Record], shares: Mapping[int, float] | None = None
) -> tuple[ClusterSpec, dict[int, float]]:
    """The cluster of a recorded run with each node as slow in every stretch of time as it was then.

    In a stretch, a node's speed is the median of Γ(x) over the time that its steps took. The fastest stretch is the
    whole node; in the others a part of it is there. After the end of the run its speeds come backwards, so that
    nothing jumps there.

    Args:
        spec: as :func:`uneven.simulate.described` makes it of the same run; node i is rank i.
        records: of the run.
        shares: rank → cores that it was held to. Who has waited for others has saved up processor time and computes
            faster than its share for a while; in the long run a step takes no less than its processor seconds over the
            share, and so does its own side of an exchange. That holds for whoever sets the pace, and where nobody
            waits for all.

    Returns:
        The cluster, and rank → seconds of its own side of an exchange with the whole node.
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
    """The node over time, and its own side of an exchange, with no more cores than these."""
    cost = node.cost
    if not isinstance(cost, Affine):
        raise ConfigError(f"node {node.name!r}: its cost was not learnt from a recorded run")
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
    share = Trace(values=parts + parts[::-1], step_s=step_s, source="recorded speeds")
    return replace(node, cost=whole, jitter=TO_DEVIATION * median(off or [0.0]), share=share), median(own_s or [0.0])


def _took_s(step: StepRecord, cores: float) -> float:
    return max((step.data_s + step.compute_s) / step.threads, step.local_cpu_s / cores)
