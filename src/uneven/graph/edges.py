"""What a graph is given as, checked once: ids in range, whole numbers, no more edges than a part can count."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from uneven.errors import ConfigError, DataError
from uneven.graph.edge_list import MOST, EdgeList


def edges_of(graph: Any, num_nodes: int | None = None) -> EdgeList:
    """The edges of ``graph``.

    Args:
        graph: PyG's ``Data`` or whatever else has ``edge_index``; or that itself, shape [2, edges], row 0 the sources.
        num_nodes: vertices; by default those that ``graph`` names, else the greatest id and one.

    Raises:
        DataError: another shape, ids that are no whole numbers or out of range, more than 2³¹ − 1 vertices.
    """
    given = getattr(graph, "edge_index", graph)
    if num_nodes is None:
        num_nodes = getattr(graph, "num_nodes", None)
    index = given if isinstance(given, torch.Tensor) else torch.from_numpy(np.ascontiguousarray(given))
    if index.dim() != 2 or index.shape[0] != 2:
        raise DataError(f"edge_index has shape {tuple(index.shape)}: give [2, edges], row 0 the sources")
    if index.is_floating_point() or index.is_complex() or index.dtype is torch.bool:
        raise DataError(f"edge_index has dtype {index.dtype}: give ids of vertices, whole numbers")
    if index.shape[1] > MOST:
        raise DataError(
            f"edge_index has {index.shape[1]:,} edges; {MOST:,} is the most that are partitioned here, for edges are "
            f"counted in 32 bits: leave out one direction of an undirected graph, or sample"
        )
    least, greatest = (int(index.min()), int(index.max())) if index.shape[1] else (0, -1)
    vertices = greatest + 1 if num_nodes is None else int(num_nodes)
    if least < 0 or greatest >= vertices:
        wrong = least if least < 0 else greatest
        raise DataError(f"edge_index names vertex {wrong}, and there are {vertices}: ids go from 0 to {vertices - 1}")
    if vertices > MOST or vertices < 1:
        raise DataError(f"a graph of {vertices:,} vertices: there must be 1 to {MOST:,}")
    source, target = index.to(device="cpu", dtype=torch.int32).numpy()
    return EdgeList(np.ascontiguousarray(source), np.ascontiguousarray(target), vertices)


def tensors_of(graph: Any, vertices: int) -> dict[str, torch.Tensor]:
    """What a ``Data`` holds for each vertex: its tensors with a row each, by name (x, y, train_mask, …)."""
    if isinstance(graph, torch.Tensor | np.ndarray) or not hasattr(graph, "edge_index"):
        return {}
    items = dict(graph) if hasattr(graph, "__iter__") else vars(graph)  # PyG's Data gives its names and tensors
    rows = {name: one for name, one in items.items() if isinstance(one, torch.Tensor) and one.dim()}
    return {name: one for name, one in rows.items() if name != "edge_index" and one.shape[0] == vertices}


def rows_of(tensors: Mapping[str, Any], vertices: int) -> dict[str, npt.NDArray[Any]]:
    """What is kept beside a cut graph, as files have it: each name becomes a file's, each array has a row a vertex.

    Raises:
        ConfigError: a name that is no file's, another number of rows, or numbers that NumPy has not.
    """
    found = {}
    for name, given in tensors.items():
        if not name or name.startswith(".") or "/" in name or "\0" in name:
            raise ConfigError(f"tensor {name!r}: it becomes a file of this name, so give a word without slashes")
        if not isinstance(given, torch.Tensor | np.ndarray):
            raise ConfigError(f"tensor {name!r} is of type {type(given).__name__}: give a tensor, or an array of NumPy")
        if isinstance(given, torch.Tensor):
            try:
                given = given.detach().cpu().numpy()
            except TypeError as error:  # sparse, or of a kind that NumPy has not
                raise ConfigError(
                    f"tensor {name!r} is {given.dtype}, {given.layout}, which files of NumPy do not hold: give it "
                    f"dense, and float32 for bfloat16; g.constant(x, torch.bfloat16) halves it again where it is used"
                ) from error
        if given.ndim < 1 or given.shape[0] != vertices:
            raise ConfigError(f"tensor {name!r} has shape {tuple(given.shape)}: give {vertices} rows, one a vertex")
        if given.dtype.kind not in "biufc":
            raise ConfigError(f"tensor {name!r} is of dtype {given.dtype}: give numbers")
        found[name] = given
    return found
