"""What a preconditioner (K-FAC, SOAP) adds to the steps of a described cluster. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from uneven.cluster.checks import not_negative, positive
from uneven.errors import ConfigError

KINDS = ("kfac", "soap")


@dataclass(frozen=True, slots=True, kw_only=True)
class Preconditioning:
    """A preconditioner; ``KFAC.describe()`` writes one down after a real run.

    Attributes:
        layers: sides of the two squares of each layer: inputs (and 1 where there is a bias) and outputs.
        kind: "kfac", whose sums travel to owners, or "soap", which makes its squares of the averaged gradients.
        factor_period, refresh_period: steps from one to the next; the second a multiple of the first.
        share: f, the share of the workers that hold a layer's bases and turn its gradient; 1 / P, or less, is one.
        place: rule for owners: "speed", "compute", "memory" or "round-robin".
        turns: matrix products that turn a gradient: 4 by eigenvectors, 2 by inverses.
        cost_per_s: of the cost that owners are placed by (9 n³ for a decomposition, turns · a g (a + g) for a
            gradient), what a core does in a second.
        factor_core_s: core-seconds that a sample takes in a step in which factors are.
    """

    layers: tuple[tuple[int, ...], ...]
    kind: str = "kfac"
    factor_period: int = 1
    refresh_period: int = 10
    share: float = 1.0
    place: str = "speed"
    turns: float = 4.0
    cost_per_s: float = 2e10
    factor_core_s: float = 0.0

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
        positive("preconditioner", "turns", self.turns)
        positive("preconditioner", "cost_per_s", self.cost_per_s)
        not_negative("preconditioner", "factor_core_s", self.factor_core_s)
