"""One described cluster in virtual time, and its error against a measured step."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from uneven.cluster.pure.describe.spec import ClusterSpec, Node
from uneven.cluster.pure.describe.trace import Measured


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePoint:
    """A measured step, and the simulated one."""

    what: str
    measured_s: float
    simulated_s: float

    @property
    def error(self) -> float:
        """The simulated time relative to the measured one, minus 1."""
        return self.simulated_s / self.measured_s - 1


class SourceErrors(NamedTuple):
    """The errors of a source, relative."""

    points: int
    median_error: float  # of the sizes
    signed: float  # median with its sign
    worst_error: float  # largest size


def summary(points: Sequence[SourcePoint]) -> SourceErrors:
    """Return the errors of at least one point."""
    errors = [point.error for point in points]
    sizes = [abs(error) for error in errors]
    return SourceErrors(len(points), statistics.median(sizes), statistics.median(errors), max(sizes))


def cluster(name: str, nodes: Iterable[Node], batch: int, gradient_bytes: int) -> ClusterSpec:
    """Return a cluster in which each node takes ``batch`` samples."""
    spec = ClusterSpec(name=name, nodes=tuple(nodes))
    workload = replace(spec.workload, global_batch=batch * len(spec.nodes), gradient_bytes=gradient_bytes)
    return replace(spec, workload=workload)


def same_step(seconds: float, batch: int) -> Measured:
    """Return a cost with this step at this batch."""
    return Measured((batch, 2 * batch), (seconds, 2 * seconds))
