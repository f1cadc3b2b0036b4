"""Where a worker's part comes from: a folder that all workers read, or a graph in memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from uneven.errors import ConfigError, DataError
from uneven.graph.cut.base import Ids
from uneven.graph.edges import edges_of, tensors_of
from uneven.graph.order import near_first
from uneven.graph.parted import GraphPart, HaloRoute, part_of
from uneven.graph.regions import Dealt, done_in, fitted, grouped
from uneven.graph.rows import Adjacency
from uneven.graph.store import GraphStore

_DEALINGS = 6
"""Earlier dealings from which costs are learnt."""


class GraphSource(ABC):
    """Gives a part, and what belongs to its vertices.

    Attributes:
        fingerprint: hexadecimal; the same where the graph is.
        vertices: of the whole graph.
        speeds: what each worker does in any time; parts are dealt out by it. Alike if None.
    """

    fingerprint: str
    vertices: int
    speeds: Sequence[float] | None = None

    def forget(self) -> None:
        """Other workers are there, of whose speeds nothing is known."""
        self.speeds = None

    @abstractmethod
    def part(self, rank: int, size: int) -> GraphPart:
        """The part of worker ``rank`` of ``size``."""

    @abstractmethod
    def ends(self, size: int) -> tuple[int, ...]:
        """Where the edges of each of ``size`` workers end, to be compared among them."""

    @abstractmethod
    def vector(self, name: str, ids: Ids) -> npt.NDArray[Any]:
        """One number for each of these vertices: order (its id in the graph), in_degree or loops."""

    @abstractmethod
    def rows(self, name: str, ids: Ids) -> Tensor:
        """Rows of a tensor of the user's."""


class StoredSource(GraphSource):
    """A folder, mapped into memory. With fewer workers than parts, each takes several parts that follow each other.

    Args:
        speeds: see :class:`GraphSource`.
    """

    def __init__(self, path: str | Path, speeds: Sequence[float] | None = None) -> None:
        self.store = GraphStore(path)
        self.speeds = speeds
        self._dealt: list[range] = []
        self._seen: list[Dealt] = []
        self.fingerprint = self.store.facts.fingerprint
        self.vertices = self.store.facts.vertices

    def forget(self) -> None:
        """See :class:`GraphSource`."""
        super().forget()
        self._dealt, self._seen = [], []

    def groups(self, size: int) -> list[range]:
        """The parts of each worker.

        Raises:
            ConfigError: more workers than parts.
        """
        parts = self.store.facts.parts
        if not 1 <= size <= parts:
            raise ConfigError(
                f"{size} workers and {parts} parts in {self.store.path}: a part cannot be split; partition again with "
                f"parts={size}"
            )
        if len(self._dealt) == size:
            return self._dealt
        if self.speeds is None:
            return [range(parts * one // size, parts * (one + 1) // size) for one in range(size)]
        if len(self.speeds) != size:
            raise ConfigError(f"speeds = {tuple(self.speeds)}: give one for each of {size} workers")
        return grouped(self.costs, self.speeds)

    @cached_property
    def rooted(self) -> tuple[float, ...]:
        """Roots of each part."""
        return tuple(np.bincount(self.store.array("roots"), minlength=self.store.facts.parts).astype(float).tolist())

    @property
    def costs(self) -> tuple[float, ...]:
        """What each part costs: edges + β · roots; above 0."""
        return self._costs(self.store.facts.beta)

    def _costs(self, beta: float) -> tuple[float, ...]:
        edges = np.diff(np.asarray(self.store.facts.bounds))
        return tuple(np.maximum(edges + beta * np.asarray(self.rooted), 1e-9).tolist())

    def faster(self, size: int, own_s: Sequence[float], least: float) -> bool:
        """Deal the parts out by what each worker needed for those that it has; whether that was worth it.

        Args:
            own_s: of each worker, for what it does by itself in a step, seconds.
            least: the share of the longest of these that must be saved.
        """
        now, bounds = self.groups(size), self.store.facts.bounds
        edges = tuple(float(bounds[one.stop] - bounds[one.start]) for one in now)
        roots = tuple(sum(self.rooted[p] for p in one) for one in now)
        same = [
            one for one in self._seen if len(one.own_s) == size and one.edges != edges
        ]  # the newest of each dealing
        self._seen = [*same[-_DEALINGS:], Dealt(edges, roots, tuple(own_s))]
        beta, fixed = fitted(self._seen, self.store.facts.beta)
        costs = self._costs(beta)
        speeds = [(fixed + sum(costs[p] for p in one)) / taken_s for one, taken_s in zip(now, own_s, strict=True)]
        then = grouped(costs, speeds, fixed)
        if then == now or done_in(costs, speeds, then, fixed) > (1.0 - least) * max(own_s):
            return False
        self._dealt = then
        return True

    def ends(self, size: int) -> tuple[int, ...]:
        """See :class:`GraphSource`."""
        return tuple(self.store.facts.bounds[one.stop] for one in self.groups(size))

    def part(self, rank: int, size: int) -> GraphPart:
        """See :class:`GraphSource`."""
        groups = self.groups(size)
        bounds = self.store.facts.bounds
        mine = slice(bounds[groups[rank].start], bounds[groups[rank].stop])
        root = self.worker_of(groups)[self.store.array("roots")]
        source, target = (np.asarray(self.store.array(name)[mine]) for name in ("source", "target"))
        return part_of(source, target, self.store.holders(groups), root, rank)

    @staticmethod
    def worker_of(groups: Sequence[range]) -> npt.NDArray[np.int64]:
        """int64 [parts]."""
        return np.repeat(np.arange(len(groups)), [len(one) for one in groups])

    def vector(self, name: str, ids: Ids) -> npt.NDArray[Any]:
        """See :class:`GraphSource`."""
        return np.asarray(self.store.array(name)[ids])

    def rows(self, name: str, ids: Ids) -> Tensor:
        """See :class:`GraphSource`."""
        return self.store.rows(name, ids)


class WholeSource(GraphSource):
    """A graph in memory, in one part, its vertices in an order in which neighbours are near."""

    def __init__(self, graph: Any, num_nodes: int | None = None) -> None:
        edges = edges_of(graph, num_nodes)
        self.vertices = edges.vertices
        self.fingerprint = f"{edges.fingerprint():016x}"
        self._tensors = tensors_of(graph, edges.vertices)
        rank = near_first(edges.source, edges.target, edges.vertices)
        order = np.empty(edges.vertices, np.int32)
        order[rank] = np.arange(edges.vertices, dtype=np.int32)
        source, target = rank[edges.source].astype(np.int32), rank[edges.target].astype(np.int32)
        self._source, self._target = source, target
        self._vectors: dict[str, npt.NDArray[Any]] = {
            "order": order,
            "in_degree": np.bincount(target, minlength=edges.vertices),
            "loops": np.bincount(source[source == target], minlength=edges.vertices),
        }

    def ends(self, size: int) -> tuple[int, ...]:
        """See :class:`GraphSource`."""
        return (len(self._source),)

    def part(self, rank: int, size: int) -> GraphPart:
        """See :class:`GraphSource`."""
        everything = np.arange(self.vertices, dtype=np.int32)
        nobody = HaloRoute((slice(self.vertices, self.vertices),), (torch.zeros(0, dtype=torch.int64),))
        adjacency = Adjacency.of(self._source, self._target, self.vertices)
        copies = np.ones(self.vertices, np.int32)
        return GraphPart(everything, self.vertices, copies, adjacency, nobody, nobody, nobody, len(self._source))

    def vector(self, name: str, ids: Ids) -> npt.NDArray[Any]:
        """See :class:`GraphSource`."""
        return np.asarray(self._vectors[name][ids])

    def rows(self, name: str, ids: Ids) -> Tensor:
        """See :class:`GraphSource`."""
        if name not in self._tensors:
            raise DataError(f"the graph has no tensor {name!r}, only {', '.join(sorted(self._tensors)) or 'none'}")
        return self._tensors[name][torch.from_numpy(self._vectors["order"][ids]).long()]
