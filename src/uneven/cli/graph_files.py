"""The reader of ``uneven graph partition``: graphs in files of NumPy and SciPy, and lists of edges."""

import gzip
import zipfile
import zlib
from array import array
from codecs import BOM_UTF8
from dataclasses import dataclass, field
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from uneven.errors import DataError
from uneven.graph.edges import graph_of
from uneven.runtime.installed import need

Arrays = dict[str, npt.NDArray[Any]]

_SPLIT = ("train_mask", "val_mask", "test_mask")

_DAMAGED = (
    *(OSError, EOFError, ValueError, TypeError, LookupError, RuntimeError, MemoryError, ArithmeticError, SyntaxError),
    *(TokenError, zipfile.BadZipFile, zlib.error),
)
"""The errors of NumPy, SciPy and gzip for damaged files."""

_PLACES = {b"source": 0, b"src": 0, b"from": 0, b"target": 1, b"dst": 1, b"to": 1}


@dataclass
class GraphFile:
    """A graph as read; has the interface of PyG's ``Data``."""

    edge_index: Tensor  # int64 [2, edges]
    num_nodes: int
    tensors: dict[str, Tensor] = field(default_factory=dict)  # name → a row for each vertex

    def to_dict(self) -> dict[str, Any]:
        """Return all fields, like PyG's ``Data``."""
        return {"edge_index": self.edge_index, "num_nodes": self.num_nodes, **self.tensors}


def read_graph(path: str | Path, *, most_features: int | None = None) -> GraphFile:
    """Read a graph from an ``.npz``, from an ``.npy`` with edge_index, or from a list of edges as text, also gzipped.

    An ``.npz`` has one of three: ``edge_index`` [2, edges]; a matrix in compressed rows, ``indptr`` and ``indices``,
    with the sources of v in row v; or SciPy's format, with a source per row. All other arrays with a row for
    each vertex are kept. Features may be in compressed rows too: ``x_indptr``, ``x_indices``, ``x_dim``, and ``x_data``
    unless all are ones. ``split`` is 0 for training vertices, 1 for validation, 2 for test; labels below 0 are unknown
    and in no mask.

    Text has a line for each edge: source, target, separated by comma, semicolon, tab or blanks. ``#`` starts a comment,
    and so does ``%`` above the first edge. A line of names may be there.

    Args:
        most_features: keep only this number of features, those that most vertices have.

    Raises:
        DataError: it cannot be read, holds no graph, or has edge weights other than 1.
    """
    need("graph", "scipy")  # here, because what NumPy and SciPy raise becomes a DataError below
    path = Path(path)
    try:
        with path.open("rb") as file:
            magic = file.read(6)
        # PK: an .npz is a zip archive.
        numpy = magic.startswith((b"\x93NUMPY", b"PK"))
        given = _held(path, most_features) if numpy else _listed(path, magic)
        edges, rows = graph_of(given)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    except _DAMAGED as error:
        why = getattr(error, "strerror", None) or error
        raise DataError(f"{path}: {why}: give a list of edges, or an .npz with edge_index") from error
    rows = {name: one.long() if one.numpy().dtype.kind in "iu" else one for name, one in rows.items()}
    if "split" in rows:
        known = rows["y"] >= 0 if "y" in rows else torch.ones(edges.vertices, dtype=torch.bool)
        rows |= {name: (rows["split"] == place) & known for place, name in enumerate(_SPLIT)}
    index = torch.from_numpy(np.stack([edges.source, edges.target]).astype(np.int64))
    return GraphFile(index, edges.vertices, rows)


def _held(path: Path, most_features: int | None) -> Any:
    """Return the content of a NumPy or SciPy file, as :func:`graph_of` takes it."""
    from scipy.sparse import csr_matrix, load_npz

    opened = np.load(path, allow_pickle=False)
    if isinstance(opened, np.ndarray):
        return opened
    with opened:
        arrays: Arrays = dict(opened.items())
    if {"format", "shape", "data"} <= arrays.keys():
        return load_npz(path)
    if "indptr" in arrays and "indices" in arrays:
        columns, starts = arrays.pop("indices"), arrays.pop("indptr")
        values = arrays.pop("data", np.ones(len(columns), np.bool_))
        found = csr_matrix((values, columns, starts), shape=(len(starts) - 1, len(starts) - 1))
        # The constructor does not check the range of indices, and a damaged file may have any.
        found.check_format()
        # Here row v holds the sources of v; in SciPy's form a row is a source.
        arrays["edge_index"] = found.T
    elif "edge_index" not in arrays:
        raise DataError(f"it has {', '.join(arrays) or 'nothing'}, but no edge_index, and no indptr with indices")
    if "x_indptr" in arrays:
        columns, starts, width = (arrays.pop(f"x_{name}") for name in ("indices", "indptr", "dim"))
        values = arrays.pop("x_data", np.ones(len(columns))).astype(np.float32)
        found = csr_matrix((values, columns, starts), shape=(len(starts) - 1, int(width)))
        found.check_format()
        arrays["x"] = _commonest(found, np.bincount(columns, minlength=int(width)), most_features).toarray()
    elif "x" in arrays:
        arrays["x"] = _commonest(arrays["x"], (arrays["x"] != 0).sum(0), most_features)
    return arrays


def _commonest(x: Any, counts: npt.NDArray[Any], most: int | None) -> Any:
    return x if most is None or most >= len(counts) else x[:, np.sort(np.argsort(-counts, kind="stable")[:most])]


def _listed(path: Path, magic: bytes) -> npt.NDArray[np.int64]:
    """Return the edge_index, int64 [2, edges], of a list of edges."""
    text = path.read_bytes()
    if magic.startswith(b"\x1f\x8b"):
        text = gzip.decompress(text)
    if text.startswith(b"%%MatrixMarket"):
        raise DataError("a MatrixMarket file: write scipy.sparse.save_npz('graph.npz', scipy.io.mmread(path)) first")
    ids, form = array("q"), None
    for number, whole in enumerate(text.removeprefix(BOM_UTF8).splitlines(), start=1):
        line = whole.split(b"#")[0].strip(b" \t")
        if not line or (form is None and line.startswith(b"%")):
            continue
        mark = next((one for one in (b"\t", b",", b";") if one in line), None)
        fields = [one.strip(b" ") for one in line.split(mark)]
        here = f"line {number}, {line[:60].decode('ascii', 'backslashreplace')!r}"
        if form is None:
            form = mark, len(fields)
            if all(one[:1].isalpha() for one in fields):
                words = [one.lower().split(b"_")[0] for one in fields]
                if any(_PLACES.get(word, place) != place for place, word in enumerate(words)):
                    raise DataError(f"{here}: give columns source and target, in this order")
                continue
        if (mark, len(fields)) != form or len(fields) < 2 or not all(f.isdigit() and len(f) < 19 for f in fields[:2]):
            raise DataError(f"{here}: give two vertex ids, source and target, in the columns of the lines above")
        if any(one not in (b"1", b"1.0", b"{}") for one in fields[2:]):
            raise DataError(
                f"{here}: layers here count each edge once, without weights; to train without them, keep two columns"
            )
        ids.extend((int(fields[0]), int(fields[1])))
    if not ids:
        raise DataError("it holds no edges: give a line for each, source and target")
    return np.array(ids, np.int64).reshape(-1, 2).T
