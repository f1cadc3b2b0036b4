"""Each machine's share of a graph, from its measured rates and its memory."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from uneven.errors import ConfigError

MOST_BETA = 1e5
"""The maximum cost of a vertex, in edges; if edges cost nothing, parts need not be balanced in them."""


@dataclass(frozen=True, slots=True)
class StepWork:
    """The work of a training step, with constant features."""

    # read per edge, forward and backward: the narrower side of each layer but the first, whose sums are cached
    numbers: float
    # per vertex: 2 · in · out each for output, weight gradient and, except in the first layer, input gradient
    flops: float
    bytes: float  # per vertex: features, the first layer's cached sums, and rows of all layers with gradients

    @classmethod
    def of(cls, layers: Sequence[int], matrices: int = 1) -> "StepWork":
        """Return the work of a model with widths ``layers``: (features, hidden, …, classes).

        ``matrices`` is the number of weight matrices per layer: 2 if a vertex itself has one, as with GraphSAGE's mean.
        """
        if len(layers) < 2 or min(layers) < 1:
            raise ConfigError(f"layers = {tuple(layers)}: give widths, as (features, hidden, classes)")
        pairs = list(pairwise(layers))
        numbers = sum(2.0 * min(pair) for pair in pairs[1:])
        flops = matrices * (sum(6.0 * a * b for a, b in pairs) - 2.0 * layers[0] * layers[1])
        return cls(numbers, flops, 4.0 * ((1 + matrices) * layers[0] + 4 * sum(layers[1:])))

    def whole_bytes(self, edges: int, vertices: int) -> float:
        """Return the memory of a part, whose edges are stored in both directions."""
        return 24.0 * edges + self.bytes * vertices


@dataclass(frozen=True, slots=True)
class GraphRates:
    """The measured rates of one machine."""

    number_s: float  # seconds per number read by a sum over neighbours; bound by memory bandwidth
    flop_s: float  # seconds per floating-point operation of a product; bound by the cores

    def step_s(self, work: StepWork, edges: float, vertices: float) -> float:
        """Return the seconds of a step on a part with this many edges and vertices."""
        return self.number_s * work.numbers * edges + self.flop_s * work.flops * vertices

    def beta(self, work: StepWork) -> float:
        """Return the cost of a vertex, in edges."""
        edge_s = self.number_s * work.numbers
        return min(MOST_BETA, self.flop_s * work.flops / edge_s) if edge_s else MOST_BETA


def shares_of(
    rates: Sequence[GraphRates], work: StepWork, edges: int, vertices: int
) -> tuple[tuple[float, ...], float]:
    """Return each machine's share of edges + β · vertices that equalizes step times; and β, a geometric mean."""
    speeds = [1.0 / one.step_s(work, max(1, edges), vertices) for one in rates]
    beta = math.exp(math.fsum(math.log(one.beta(work)) for one in rates) / len(rates))
    return tuple(one / math.fsum(speeds) for one in speeds), beta


def capped(shares: Sequence[float], most: Sequence[float]) -> tuple[float, ...]:
    """Limit shares, which sum to 1, to ``most``, and give the excess to the others; raise ConfigError without room."""
    if math.fsum(most) < 1.0:
        raise ConfigError(
            f"memory: the machines have {math.fsum(most):.0%} of the memory that the graph needs: add machines"
        )
    found, left = list(shares), 1.0
    order = sorted(range(len(shares)), key=lambda p: most[p] / shares[p])  # in the order in which machines fill up
    for place, p in enumerate(order):
        found[p] = min(most[p], shares[p] / math.fsum(shares[q] for q in order[place:]) * left)
        left -= found[p]
    return tuple(found)
