"""How much of a graph each machine should have, by what it can do and by its memory. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from uneven.errors import ConfigError

MOST_BETA = 1e5
"""Edges that a vertex counts for at most: where edges cost nothing, parts are as even in them as they happen to be."""


@dataclass(frozen=True, slots=True)
class StepWork:
    """What a training step does, with constant features.

    Attributes:
        numbers: that sums over neighbours read for each edge: the narrower side of each layer but the first, whose sums
            are made once, forward and backward.
        flops: of the products for each vertex: 2 · in · out forward, as many for the weights, and as many for the
            layer's input where that has a gradient.
        bytes: that a vertex holds: features, what the first layer makes of them, and rows of all layers with gradients.
    """

    numbers: float
    flops: float
    bytes: float

    @classmethod
    def of(cls, layers: Sequence[int], matrices: int = 1) -> StepWork:
        """What a model of these widths does, (features, hidden, …, classes).

        Args:
            matrices: of weights in each layer: 2 where a layer has one for a vertex itself, as GraphSAGE's mean does.

        Raises:
            ConfigError: fewer than two widths, or one below 1.
        """
        if len(layers) < 2 or min(layers) < 1:
            raise ConfigError(f"layers = {tuple(layers)}: give widths, as (features, hidden, classes)")
        pairs = list(pairwise(layers))
        numbers = sum(2.0 * min(pair) for pair in pairs[1:])
        flops = matrices * (sum(6.0 * a * b for a, b in pairs) - 2.0 * layers[0] * layers[1])
        return cls(numbers, flops, 4.0 * ((1 + matrices) * layers[0] + 4 * sum(layers[1:])))

    def whole_bytes(self, edges: int, vertices: int) -> float:
        """What a part with so many edges and copies of vertices holds: its edges are there both ways."""
        return 24.0 * edges + self.bytes * vertices


@dataclass(frozen=True, slots=True)
class GraphRates:
    """What one machine was measured to do.

    Attributes:
        number_s: seconds for each number that a sum over neighbours reads, which follows the memory's bandwidth.
        flop_s: seconds for each operation of a product, which follows the cores.
    """

    number_s: float
    flop_s: float

    def step_s(self, work: StepWork, edges: float, vertices: float) -> float:
        """Seconds of a step on so much of a graph."""
        return self.number_s * work.numbers * edges + self.flop_s * work.flops * vertices

    def beta(self, work: StepWork) -> float:
        """What a vertex costs, in edges."""
        edge_s = self.number_s * work.numbers
        return min(MOST_BETA, self.flop_s * work.flops / edge_s) if edge_s else MOST_BETA


def shares_of(
    rates: Sequence[GraphRates], work: StepWork, edges: int, vertices: int
) -> tuple[tuple[float, ...], float]:
    """Each machine's share of edges + β · vertices, so that steps take them equally long; and β, a geometric mean."""
    speeds = [1.0 / one.step_s(work, max(1, edges), vertices) for one in rates]
    beta = math.exp(math.fsum(math.log(one.beta(work)) for one in rates) / len(rates))
    return tuple(one / math.fsum(speeds) for one in speeds), beta


def capped(shares: Sequence[float], most: Sequence[float]) -> tuple[float, ...]:
    """The shares, which add up to 1, none above its most: what is over goes to the others in proportion.

    Raises:
        ConfigError: all together hold less than 1.
    """
    if math.fsum(most) < 1.0:
        raise ConfigError(
            f"memory: the machines hold {math.fsum(most):.0%} of what the graph needs: give more, or larger ones"
        )
    found, left = list(shares), 1.0
    order = sorted(range(len(shares)), key=lambda p: most[p] / shares[p])  # who is full first
    for place, p in enumerate(order):
        found[p] = min(most[p], shares[p] / math.fsum(shares[q] for q in order[place:]) * left)
        left -= found[p]
    return tuple(found)
