"""Graphs in files of NumPy: what ``uneven graph partition`` reads."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from uneven.errors import DataError

Arrays = dict[str, npt.NDArray[Any]]

_SPLIT = ("train_mask", "val_mask", "test_mask")


@dataclass
class GraphFile:
    """A graph as it was read; takes the place of PyG's ``Data``.

    Attributes:
        edge_index: int64 [2, edges].
        tensors: name → a row for each vertex.
    """

    edge_index: Tensor
    num_nodes: int
    tensors: dict[str, Tensor] = field(default_factory=dict)

    def __iter__(self) -> Any:
        return iter({"edge_index": self.edge_index, **self.tensors}.items())


def read_graph(path: str | Path, *, most_features: int | None = None) -> GraphFile:
    """A graph in an ``.npz``, or its edge_index in an ``.npy``.

    An ``.npz`` has ``edge_index`` [2, edges] or a matrix in compressed rows, ``indptr`` and ``indices``, row v the
    vertices that lead to v. Every other array with a row for each vertex comes along. Features may be in compressed
    rows, too: ``x_indptr``, ``x_indices``, ``x_dim``, and ``x_data`` unless all are ones. ``split`` holds 0 for
    vertices to train on, 1 to validate, 2 to test; labels below 0 are unknown and in no mask.

    Args:
        most_features: keep only the features that most vertices have.

    Raises:
        DataError: it cannot be read, or holds no edges.
    """
    path = Path(path)
    try:
        opened = np.load(path, allow_pickle=False)
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: {error}: give an .npz with edge_index, or with indptr and indices") from error
    if isinstance(opened, np.ndarray):
        return GraphFile(torch.from_numpy(opened), int(opened.max(initial=-1)) + 1)
    with opened:
        arrays: Arrays = dict(opened.items())
    if "indptr" in arrays and "indices" in arrays:
        starts, sources = arrays.pop("indptr").astype(np.int64), arrays.pop("indices").astype(np.int64)
        vertices = len(starts) - 1
        index = np.stack([sources, np.repeat(np.arange(vertices), np.diff(starts))])
    elif "edge_index" in arrays:
        index = arrays.pop("edge_index")
        vertices = int(arrays["num_nodes"] if "num_nodes" in arrays else len(arrays.get("y", ())) or index.max() + 1)
    else:
        raise DataError(f"{path} has {', '.join(arrays)}, and neither edge_index nor indptr and indices")
    if "x_indptr" in arrays:
        arrays["x"] = _dense(arrays, most_features)
    elif "x" in arrays and most_features is not None:
        arrays["x"] = arrays["x"][:, _commonest((arrays["x"] != 0).sum(0), most_features)]
    rows = {name: torch.from_numpy(_whole(one)) for name, one in arrays.items() if one.shape[:1] == (vertices,)}
    if "split" in rows:
        known = rows["y"] >= 0 if "y" in rows else torch.ones(vertices, dtype=torch.bool)
        rows |= {name: (rows["split"] == place) & known for place, name in enumerate(_SPLIT)}
    return GraphFile(torch.from_numpy(index), vertices, rows)


def _whole(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """int64 for labels in few bits, which losses do not take."""
    return array.astype(np.int64) if array.dtype.kind in "iu" else array


def _commonest(counts: npt.NDArray[Any], most: int) -> npt.NDArray[np.int64]:
    return np.sort(np.argsort(-counts, kind="stable")[:most])


def _dense(arrays: Arrays, most: int | None) -> npt.NDArray[np.float32]:
    starts, columns = arrays.pop("x_indptr").astype(np.int64), arrays.pop("x_indices").astype(np.int64)
    width = int(arrays.pop("x_dim"))
    values = arrays.pop("x_data", np.ones(len(columns), np.float32)).astype(np.float32)
    kept = np.arange(width)
    if most is not None and most < width:
        kept = _commonest(np.bincount(columns, minlength=width), most)
    place = np.full(width, -1)
    place[kept] = np.arange(len(kept))
    row = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    inside = place[columns] >= 0
    found = np.zeros((len(starts) - 1, len(kept)), np.float32)
    found[row[inside], place[columns[inside]]] = values[inside]
    return found
