"""The speeds of a recorded run's workers over time, for a simulation with changes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median

from uneven.cluster.pure.describe.spec import ClusterSpec, Node
from uneven.cluster.pure.describe.trace import SHORTEST_S, Trace
from uneven.cluster.pure.simulate.costs import TO_DEVIATION, sorted_steps
from uneven.errors import ConfigError
from uneven.policy.core.cost import Affine
from uneven.policy.core.records import SHARE, Record, RunRecord, StepRecord

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
    # After the end of the run its speeds are repeated backwards, so that they do not jump there.
    share = Trace(values=parts + parts[::-1], step_s=step_s, source="recorded speeds")
    return replace(node, cost=whole, jitter=TO_DEVIATION * median(off or [0.0]), share=share), median(own_s or [0.0])


def _took_s(step: StepRecord, cores: float) -> float:
    # A worker that waits for others saves up processor time and then computes faster than its share for a while; in the
    # long run a step takes at least its processor seconds over the share.
    return max((step.data_s + step.compute_s) / step.threads, step.local_cpu_s / cores)
