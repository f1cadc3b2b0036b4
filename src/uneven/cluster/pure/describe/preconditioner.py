"""The work that a preconditioner (K-FAC, SOAP) adds to the steps of a described cluster."""

from __future__ import annotations

from dataclasses import dataclass

from uneven.cluster.pure.describe.spec_checks import Positive, Time
from uneven.errors import ConfigError
from uneven.policy.core.tables import check

KINDS = ("kfac", "soap")


@dataclass(frozen=True, slots=True, kw_only=True)
class Preconditioning:
    """A preconditioner; ``KFAC.describe()`` writes one after a real run."""

    # sides of the two square matrices of each layer: inputs (+ 1 with a bias) and outputs
    layers: tuple[tuple[int, ...], ...]
    # "kfac", whose sums travel to owners, or "soap", which computes its matrices from averaged gradients
    kind: str = "kfac"
    # factor_period, refresh_period: steps between updates; the second is a multiple of the first
    factor_period: int = 1
    refresh_period: int = 10
    # f, the part of the workers that hold a layer's bases and transform its gradient; at most 1 / P is one worker
    share: float = 1.0
    place: str = "speed"  # rule for owners: "speed", "compute", "memory" or "round-robin"
    turns: Positive = 4.0  # matrix products that transform a gradient: 4 by eigenvectors, 2 by inverses
    # cost units that a core computes per second; a decomposition costs 9 n³, a gradient turns · a g (a + g)
    cost_per_s: Positive = 2e10
    factor_core_s: Time = 0.0  # core-seconds per sample in a step that updates factors

    def __post_init__(self) -> None:
        if not self.layers or any(len(one) != 2 or min(one) < 1 for one in self.layers):
            raise ConfigError(
                "preconditioner: layers must be a list of pairs of sides, as [[785, 512], [513, 10]]: of inputs, and "
                "one more where there is a bias, and of outputs"
            )
        if self.kind not in KINDS:
            raise ConfigError(f"preconditioner: kind = {self.kind!r} is none of {', '.join(map(repr, KINDS))}")
        if self.factor_period < 1 or self.refresh_period < 1 or self.refresh_period % self.factor_period:
            raise ConfigError(
                f"preconditioner: factor_period = {self.factor_period} and refresh_period = {self.refresh_period} must "
                f"be at least 1, and the second a multiple of the first"
            )
        if not 0.0 < self.share <= 1.0:
            raise ConfigError(f"preconditioner: share = {self.share!r}: give a number above 0 up to 1")
        check(self, "preconditioner: ")
