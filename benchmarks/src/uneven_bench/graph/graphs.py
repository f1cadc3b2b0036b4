"""The graphs of the bench: real ones from ``UNEVEN_DATA``, and a large random one."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from uneven.cli.graph_files import GraphFile, read_graph
from uneven.graph.edges import edges_of
from uneven.graph.pure.edge_list import EdgeList
from uneven_bench.harness.data import needed_file

FILES = {"cornell": ("fb100_Cornell5", 602), "physics": ("coauthor_phy", 256), "amazon": ("amazon_cs", 767)}
"""Name → file, and the largest number of its features to keep: the commonest."""


@dataclass(frozen=True)
class BenchGraph:
    """A graph with labels."""

    name: str
    file: GraphFile  # as it was read
    edges: EdgeList  # its directed edges
    x: Tensor  # features, a row for each vertex
    y: Tensor  # labels of the vertices
    classes: int  # number of labels

    @property
    def index(self) -> Tensor:
        """The edge_index, int64 [2, edges]."""
        return self.file.edge_index

    def with_loops(self) -> EdgeList:
        """Return it with an edge from each vertex to itself, as DGL's GCN needs it."""
        own = np.arange(self.edges.vertices, dtype=np.int32)
        other = self.edges.source != self.edges.target
        source, target = (np.concatenate([one[other], own]) for one in (self.edges.source, self.edges.target))
        return EdgeList(source, target, self.edges.vertices)


def bench_graph(name: str) -> BenchGraph:
    """Load a graph by name. Raises DataError: ``UNEVEN_DATA`` names no folder that has it."""
    found, most = FILES[name]
    file = read_graph(needed_file("graphs", f"{found}.npz"), most_features=most)
    y = file.tensors["y"].clamp(min=0)  # vertices without a label are in no mask
    return BenchGraph(name, file, edges_of(file), file.tensors["x"].float(), y, int(y.max()) + 1)


def drawn(vertices: int, edges: int, seed: int = 0) -> Tensor:
    """Return random edges, int64 [2, edges], between vertices of which a few have many (the square of a uniform
    number)."""
    draw = torch.Generator().manual_seed(seed)
    ends = torch.rand(2, edges, generator=draw).square_().mul_(vertices)
    mixed = torch.randperm(vertices, generator=draw)
    return mixed[ends.long()]
