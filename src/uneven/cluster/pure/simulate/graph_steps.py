"""The computation and messages of a training step on a partitioned graph, by exchange."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from uneven.cluster.pure.simulate.phases import WorkPhase
from uneven.errors import UnknownNameError

EXCHANGES = ("exact", "cd-0", "cd-r:r=5", "0c")
Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class CutLoad:
    """A partitioned graph: the load of each worker.

    ``down``, ``up`` and ``every`` are int64 [workers, workers]: [p, q] is the number of rows with a copy on p and the
    root on q: rows with outgoing edges, with incoming edges, and all.
    """

    edges: tuple[int, ...]
    roots: tuple[int, ...]
    held: tuple[int, ...]
    down: Rows
    up: Rows
    every: Rows


def phases(
    load: CutLoad, exchange: str, layers: Sequence[int], *, number_s: float, flop_s: float, overhead_s: float = 0.0
) -> list[WorkPhase]:
    """Return the phases of a step: our layers for ``exact``, DistGNN's, which sum before they multiply, otherwise.

    Args:
        layers: widths, (features, hidden, …, classes); one matrix per layer.
        number_s: seconds of one core for each number that a sum over neighbors reads.
        flop_s: seconds of one core for each operation of a product.
        overhead_s: core seconds of a step that do not depend on the part.

    Raises:
        UnknownNameError: no such exchange.
    """
    if exchange not in EXCHANGES:
        raise UnknownNameError("exchange of a graph", exchange, EXCHANGES)
    steps = _Steps(len(load.edges))
    steps.work(lambda p: overhead_s)
    (_exact if exchange == "exact" else _released)(steps, load, exchange, list(pairwise(layers)), number_s, flop_s)
    steps.end(ring_bytes=4.0 * sum(a * b + b for a, b in pairwise(layers)))
    return steps.phases


class _Steps:
    """Collects the computation between two exchanges."""

    def __init__(self, workers: int) -> None:
        self.phases: list[WorkPhase] = []
        self._core_s = [0.0] * workers

    def work(self, core_s: Callable[[int], float]) -> None:
        self._core_s = [before + core_s(p) for p, before in enumerate(self._core_s)]

    def send(self, rows: Rows, width: float, late: bool = False) -> None:
        self.end((rows * 4.0 * width).tolist(), late)

    def end(self, sent: Sequence[Sequence[float]] = (), late: bool = False, ring_bytes: float = 0.0) -> None:
        self.phases.append(WorkPhase(tuple(self._core_s), sent, late, ring_bytes))
        self._core_s = [0.0] * len(self._core_s)


def _exact(
    steps: _Steps, load: CutLoad, exchange: str, pairs: list[tuple[int, int]], number_s: float, flop_s: float
) -> None:
    def products(a: int, b: int, times: float) -> None:
        steps.work(lambda p: times * a * b * load.roots[p] * flop_s)

    def sums(width: int) -> None:
        steps.work(lambda p: load.edges[p] * width * number_s)

    products(*pairs[0], 2.0)
    for a, b in pairs[1:]:  # the first layer's sums are constant, so they were computed once
        products(a, b, 2.0)
        # Roots send rows to their copies, copies return partial sums; sums are sent at the narrower width.
        steps.send(load.down.T, min(a, b))
        sums(min(a, b))
        steps.send(load.up, min(a, b))
    for a, b in reversed(pairs[1:]):
        steps.send(load.up.T, min(a, b))
        sums(min(a, b))
        steps.send(load.down, min(a, b))
        products(a, b, 4.0)
    products(*pairs[0], 2.0)


def _released(
    steps: _Steps, load: CutLoad, exchange: str, pairs: list[tuple[int, int]], number_s: float, flop_s: float
) -> None:
    kind, _, option = exchange.partition(":r=")
    bins = int(option or 1)
    for a, b in pairs:
        steps.work(lambda p, a=a: load.edges[p] * a * number_s)  # type: ignore[misc]
        if kind != "0c":
            for rows in (load.every, load.every.T):
                steps.send(rows, (a + 1) / bins, late=bins > 1)
        steps.work(lambda p, a=a, b=b: 2.0 * a * b * load.held[p] * flop_s)  # type: ignore[misc]
    for place, (a, b) in enumerate(reversed(pairs), 1):  # the backward pass sends nothing
        first = place == len(pairs)
        steps.work(lambda p, a=a, b=b, first=first: (2.0 if first else 4.0) * a * b * load.held[p] * flop_s)  # type: ignore[misc]
        if not first:
            steps.work(lambda p, a=a: load.edges[p] * a * number_s)  # type: ignore[misc]
