"""The assignment of a cut graph's parts to workers by speed, and each worker's part."""

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from uneven.errors import ConfigError
from uneven.graph.adjacency import GraphPart, part_of
from uneven.graph.parts_folder import GraphStore
from uneven.graph.pure.edge_list import Wholes
from uneven.graph.pure.regions import Dealt, done_in, fitted, grouped

_DEALINGS = 6  # past assignments used to fit costs


class GraphSource:
    """The parts of a cut graph. With fewer workers than parts, each worker takes several consecutive ones."""

    def __init__(self, store: GraphStore, speeds: Sequence[float] | None = None) -> None:
        self.store = store
        self.speeds = speeds
        self._dealt: list[range] = []
        self._seen: list[Dealt] = []

    def groups(self, size: int) -> list[range]:
        """Return the parts of each worker; raise :class:`ConfigError` for more workers than parts."""
        parts = self.store.facts.parts
        if not 1 <= size <= parts:
            raise ConfigError(
                f"{size} workers, but {parts} parts in {self.store.where}: partition again with parts={size}"
            )
        if len(self._dealt) == size:
            return self._dealt
        if self.speeds is None:
            return [range(parts * one // size, parts * (one + 1) // size) for one in range(size)]
        if len(self.speeds) != size:
            raise ConfigError(f"speeds = {tuple(self.speeds)}: give one for each of {size} workers")
        return grouped(self.costs(self.store.facts.beta).tolist(), self.speeds)

    @cached_property
    def rooted(self) -> Wholes:
        """The number of roots of each part; int64 (parts,)."""
        return np.bincount(self.store.array("roots"), minlength=self.store.facts.parts)

    def costs(self, beta: float) -> npt.NDArray[np.float64]:
        """Return each part's cost, edges + β · roots, above 0; float64 (parts,)."""
        return np.maximum(np.diff(self.store.facts.bounds) + beta * self.rooted, 1e-9)

    def faster(self, size: int, own_s: Sequence[float], least: float) -> bool:
        """Reassign the parts by each worker's seconds per step; return whether that saves ``least`` of the longest."""
        now = self.groups(size)
        starts = [one.start for one in now]
        edges, roots = (np.add.reduceat(one, starts) for one in (np.diff(self.store.facts.bounds), self.rooted))
        dealt = Dealt(tuple(edges.tolist()), tuple(roots.tolist()), tuple(own_s))
        others = [one for one in self._seen if len(one.own_s) == size and one.edges != dealt.edges]
        self._seen = [*others[-_DEALINGS:], dealt]  # the newest of each assignment
        beta, fixed = fitted(self._seen, self.store.facts.beta)
        costs = self.costs(beta)
        speeds = ((fixed + np.add.reduceat(costs, starts)) / np.asarray(own_s)).tolist()
        then = grouped(costs.tolist(), speeds, fixed)
        if then == now or done_in(costs.tolist(), speeds, then, fixed) > (1.0 - least) * max(own_s):
            return False
        self._dealt = then
        return True

    def root(self, size: int) -> Wholes:
        """Return the worker that roots each vertex, int64 (vertices,)."""
        groups = self.groups(size)
        return np.repeat(np.arange(size), [len(one) for one in groups])[self.store.array("roots")]

    def part(self, rank: int, size: int) -> GraphPart:
        groups = self.groups(size)
        return part_of(self.store.edges(groups[rank]), self.store.holders(groups), self.root(size), rank)
