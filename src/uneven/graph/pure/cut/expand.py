"""Neighbourhood expansion (NE, Zhang et al., KDD 2017): each part grows from a vertex until it has its share.

Pure; :mod:`uneven.graph.native` has the same loop compiled, with identical results. It needs the whole graph in memory.
"""

from collections.abc import Sequence
from heapq import heappop, heappush

import numpy as np

from uneven.graph.pure.edge_list import EdgeList, Wholes


def expand(edges: EdgeList, shares: Sequence[float], first: Wholes, beta: float) -> tuple[Wholes, Wholes, Wholes]:
    """Grow all parts in one pass: return edges in the order of placement, bounds of the parts in it, and vertex ranks.

    A part has a member set S. Its next core vertex is the member with the fewest unplaced edges; its other neighbours
    join S, and all edges between two members go to the part. The last part takes the rest.

    ``first`` (vertices,) is the order of seeds; ``beta`` is the cost of a vertex for its first part, in edges. A
    vertex's rank is the time at which it first joined a part; those without edges come last.
    """
    growth = _Growth(edges, first)
    ends, total = [0], len(edges) + beta * int((np.array(growth.left) > 0).sum())
    for p, share in enumerate(shares):
        growth.grow(share * total if p < len(shares) - 1 else float("inf"), beta)
        ends.append(len(growth.placed))
    rank = np.array(growth.rank, np.int64)
    rank[rank < 0] = np.arange(growth.joined, edges.vertices)
    return np.array(growth.placed, np.int64), np.array(ends, np.int64), rank


class _Growth:
    """The state of the pass."""

    def __init__(self, edges: EdgeList, first: Wholes) -> None:
        self.near: list[list[tuple[int, int]]] = [[] for _ in range(edges.vertices)]
        for edge, (u, v) in enumerate(zip(edges.source.tolist(), edges.target.tolist(), strict=True)):
            self.near[u].append((v, edge))
            if u != v:
                self.near[v].append((u, edge))
        # All unplaced edges of a member of S lead out of S, so they count the neighbours it would add.
        self.left = [len(one) for one in self.near]
        self.taken = bytearray(len(edges))
        self.placed: list[int] = []
        self.rank = [-1] * edges.vertices
        self.joined = self.waits = 0
        self.seeds = first.tolist()
        self.seed = 0

    def grow(self, target: float, beta: float) -> None:
        self.member = bytearray(len(self.near))
        self.queue: list[tuple[int, int, int]] = []  # (unplaced edges, −time of entry, vertex)
        cost = 0.0
        while cost < target:
            core = self._next()
            if core is None:
                while self.seed < len(self.seeds) and not self.left[self.seeds[self.seed]]:
                    self.seed += 1
                if self.seed == len(self.seeds):
                    return
                core = self.seeds[self.seed]
                cost += self._join(core, beta)
            for other, edge in self.near[core]:
                if cost >= target:
                    return
                if not self.taken[edge] and not self.member[other]:
                    cost += self._join(other, beta)

    def _next(self) -> int | None:
        """Return the member with the fewest unplaced edges; among equals, the newest."""
        while self.queue:
            left, _, vertex = heappop(self.queue)
            if self.left[vertex] == left:  # otherwise outdated: the heap has a newer entry
                return vertex
        return None

    def _join(self, vertex: int, beta: float) -> float:
        """Add a vertex to S; return its cost."""
        cost = -float(len(self.placed))
        self.member[vertex] = 1
        if self.rank[vertex] < 0:
            self.rank[vertex] = self.joined
            self.joined += 1
            cost += beta
        for other, edge in self.near[vertex]:
            if not self.taken[edge] and self.member[other]:
                self.taken[edge] = 1
                self.placed.append(edge)
                self.left[vertex] -= 1
                if other != vertex:
                    self.left[other] -= 1
                    self._wait(other)
        self._wait(vertex)
        return cost + len(self.placed)

    def _wait(self, vertex: int) -> None:
        if left := self.left[vertex]:
            self.waits += 1
            heappush(self.queue, (left, -self.waits, vertex))
