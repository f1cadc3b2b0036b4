"""Full-batch training of graph neural networks on unequal CPU machines.

::

    graph.partition(data, path="parts", shares=(4, 2, 1))   # once
    g = graph.load("parts")                                 # this worker's part
    session = uneven.Session(callbacks=[g])
    conv = graph.SAGEConv(in_channels, out_channels)        # conv(x, g)

Names are imported lazily, so that partitioners need no torch.
"""

from typing import TYPE_CHECKING

from uneven.runtime.installed import lazy

if TYPE_CHECKING:
    from uneven.graph.conv import GCNConv, GINConv, SAGEConv
    from uneven.graph.cutting import partition
    from uneven.graph.graph import PartedGraph, load
    from uneven.graph.parts_folder import GraphStore

__all__ = ["GCNConv", "GINConv", "GraphStore", "PartedGraph", "SAGEConv", "load", "partition"]

__getattr__ = lazy(
    __name__,
    {
        "uneven.graph.conv": ("GCNConv", "GINConv", "SAGEConv"),
        "uneven.graph.cutting": ("partition",),
        "uneven.graph.graph": ("PartedGraph", "load"),
        "uneven.graph.parts_folder": ("GraphStore",),
    },
)
