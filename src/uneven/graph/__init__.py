"""Full-batch training of graph neural networks on unequal CPU machines.

::

    graph.partition(data, path="parts", shares=(4, 2, 1))   # once
    g = graph.load("parts")                                 # this worker's part
    session = uneven.Session(parts=[g])
    conv = graph.SAGEConv(in_channels, out_channels)        # conv(x, g)

A name is imported when it is first touched, so partitioners do not wait for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from uneven.graph.conv import GCNConv, GINConv, SAGEConv
    from uneven.graph.cutting import partition
    from uneven.graph.graph import PartedGraph, load
    from uneven.graph.store import GraphStore

__all__ = ["GCNConv", "GINConv", "GraphStore", "PartedGraph", "SAGEConv", "load", "partition"]

_HOMES = {
    "GCNConv": "conv",
    "GINConv": "conv",
    "SAGEConv": "conv",
    "PartedGraph": "graph",
    "load": "graph",
    "partition": "cutting",
    "GraphStore": "store",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'uneven.graph' has no attribute {name!r}", name=name)
    value = getattr(importlib.import_module(f"uneven.graph.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
