"""The achieved part of a cluster's links, from measured steps."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from uneven.cluster.pure.describe.spec import ClusterSpec
from uneven.cluster.pure.simulate.virtual_world import Scenario, simulate
from uneven.errors import ConfigError
from uneven.policy.balance import balancers
from uneven.policy.sync import policies

_LEAST, _MOST = 1e-3, 1.25  # of the achieved part; above 1 the link is faster than described
_CLOSE = 1e-3  # relative width of the interval at the end [default]
_GOLDEN = (math.sqrt(5) - 1) / 2
ROUNDS = 3  # whole rounds of each simulation


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStep:
    """A measured step."""

    seconds: float  # mean of a step, over whole rounds of exchanges
    sync: str = "bsp"  # policy, as a specification
    nodes: int | None = None  # the first ones of the description; None is all
    batch: int | None = None  # samples of each node; None is the description's


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What was found."""

    spec: ClusterSpec  # with the achieved part
    achieved: float
    points: int
    worst: float  # largest error of a point with it, relative
    before: float  # the same with the description as it was

    def __str__(self) -> str:
        noun = "point" if self.points == 1 else "points"
        return (
            f"achieved = {self.achieved:.3g}, calibrated with {self.points} {noun} "
            f"(worst error {self.worst:.0%}, before {self.before:.0%})"
        )


def calibrated(spec: ClusterSpec, steps: Sequence[MeasuredStep]) -> Calibration:
    """Return a description whose links achieve the part at which the simulated steps are nearest to the measured ones.

    The sum of the sizes of log(simulated / measured) is least there, so one odd point of three does not count. The part
    holds for all links of nodes, instead of ``network``, ``achieved`` and ``flow_bit_per_s``.

    Raises:
        ConfigError: no steps, one that does not fit the description, or links that do not change the steps.

    Example: ``calibrated(spec, [MeasuredStep(seconds=1.53), MeasuredStep(seconds=0.21, sync="local:every=8")]).spec``.
    """
    if not steps:
        raise ConfigError("no measured step to calibrate with: give at least one")

    def off(achieved: float | None) -> list[float]:
        return [abs(math.log(step_s(_of(spec, step, achieved), step.sync) / step.seconds)) for step in steps]

    low, high = math.log(_LEAST), math.log(_MOST)
    if sum(off(_LEAST)) == sum(off(_MOST)):
        raise ConfigError(
            f"cluster {spec.name!r}: its links do not change the measured steps: give up_bit_per_s and down_bit_per_s"
        )
    while high - low > _CLOSE:
        left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        if sum(off(math.exp(left))) <= sum(off(math.exp(right))):
            high = right
        else:
            low = left
    achieved = math.exp((low + high) / 2)
    return Calibration(
        spec=_achieving(spec, achieved),
        achieved=achieved,
        points=len(steps),
        worst=math.expm1(max(off(achieved))),
        before=math.expm1(max(off(None))),
    )


def step_s(spec: ClusterSpec, sync: str) -> float:
    """Return the mean seconds of a step with even shares, over whole rounds of a policy."""
    policy = policies.resolve(sync)
    every = 1 if policy.facts is None else policy.facts.every
    scenario = Scenario(spec=spec, balancer=balancers.resolve("even"), policy=policy, iterations=ROUNDS * every)
    return simulate(scenario).ended_at_s / (ROUNDS * every)


def _of(spec: ClusterSpec, step: MeasuredStep, achieved: float | None) -> ClusterSpec:
    count = len(spec.nodes) if step.nodes is None else step.nodes
    if not 1 <= count <= len(spec.nodes):
        raise ConfigError(f"a measured step has nodes = {count}; cluster {spec.name!r} has {len(spec.nodes)}")
    batch = spec.workload.global_batch // len(spec.nodes) if step.batch is None else step.batch
    workload = replace(spec.workload, global_batch=batch * count)
    made = replace(spec, nodes=spec.nodes[:count], workload=workload)
    return made if achieved is None else _achieving(made, achieved)


def _achieving(spec: ClusterSpec, achieved: float) -> ClusterSpec:
    nodes = (replace(node, network="", flow_bit_per_s=None, achieved=achieved) for node in spec.nodes)
    return replace(spec, nodes=tuple(nodes))
