"""Read a graph in any supported format: its edges, and its per-vertex tensors.

Layers count each edge once, so edges with values other than 1 raise an error in every format.
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from uneven.errors import ConfigError, DataError
from uneven.graph.pure.edge_list import MOST, EdgeList

_COUNTED = ("x", "pos", "feat", "node_feat", "y", "label", "train_mask")
"""Tensors with a row for each vertex, so that they reveal trailing vertices without edges."""

_OF_EDGES = re.compile(r"(?i)(^|_|hyper)edge|^(weights?|e_?(id|feat|attr)|adj)$")
_BLOCKS = ("bsr", "dia", torch.sparse_bsr, torch.sparse_bsc)
"""Block formats, which also store zeros."""


class _Form(NamedTuple):
    """The pieces of a graph."""

    index: Any  # (2, edges)
    vertices: int = 0  # lower bound of their number
    exact: bool = False  # whether it is the number
    held: Mapping[str, Any] = {}  # name → candidate for a per-vertex tensor
    on_edges: Mapping[str, Any] = {}  # name → edge values
    leave: str = "leave {0} out"  # code with which a user drops an entry of ``held``, for messages
    clear: str = ""  # the same for ``on_edges``


def graph_of(graph: Any, num_nodes: int | None = None) -> tuple[EdgeList, dict[str, torch.Tensor]]:
    """Return the edges and the vertex tensors, (vertices, ...), of a graph in a format of :func:`partition`.

    A row of a SciPy matrix is a source; a torch matrix must be symmetric, because PyG reads it both ways. ``num_nodes``
    defaults to that of ``graph`` or of its tensors, otherwise to the largest id + 1.

    Raises:
        DataError: the format, a shape or an id is invalid, there are several types of vertices, edges have values other
            than 1, a tensor lacks rows, or there are more than 2³¹ − 1 vertices or edges.
    """
    given = _given(graph)
    index = _index(given.index)
    edges = index.shape[1]
    if edges > MOST:
        raise DataError(
            f"edge_index has {edges:,} edges; {MOST:,} is the maximum of 32-bit counts: leave out one direction of "
            "an undirected graph, or sample"
        )
    least, greatest = (int(index.min()), int(index.max())) if edges else (0, -1)
    vertices = _whole(num_nodes)
    if vertices is None:
        vertices = given.vertices if given.exact else max(given.vertices, greatest + 1)
        if not given.vertices and vertices > 1000 * (edges + 1000):
            raise DataError(
                f"edge_index names vertex {greatest:,}, and has {edges:,} edges: number the vertices from 0 "
                "(np.unique(edge_index, return_inverse=True)), or give num_nodes"
            )
    if least < 0 or greatest >= vertices:
        wrong = least if least < 0 else greatest
        raise DataError(f"edge_index names vertex {wrong} of {vertices}: give ids from 0 to {vertices - 1}")
    if vertices > MOST or vertices < 1:
        raise DataError(f"a graph of {vertices:,} vertices: give 1 to {MOST:,}")
    source, target = np.ascontiguousarray(index, np.int32)
    return EdgeList(source, target, vertices), _tensors(given, vertices, edges)


def edges_of(graph: Any, num_nodes: int | None = None) -> EdgeList:
    """Return the edges of a graph; see :func:`graph_of`."""
    return graph_of(graph, num_nodes)[0]


def _given(graph: Any) -> _Form:
    if hasattr(graph, "to_homogeneous") or (isinstance(graph, Mapping) and "edge_index_dict" in graph):
        raise DataError(
            f"a {type(graph).__name__} has types of vertices and edges, which layers here do not support: give "
            "data.to_homogeneous(add_edge_type=False) of a HeteroData, or one edge_index over all vertices"
        )
    if hasattr(graph, "ndata"):
        if graph.is_block or not graph.is_homogeneous:
            raise DataError(
                "a DGL block, or a DGL graph with types of vertices or edges, is not supported: give "
                "dgl.to_homogeneous(graph, store_type=False)"
            )
        on_edges = {name: one for name, one in graph.edata.items() if name != "_ID"}  # DGL's internal numbers
        ways = ("graph.ndata.pop({0!r})", "graph.edata.pop({0!r})")
        return _Form(graph.edges(), graph.num_nodes(), True, dict(graph.ndata), on_edges, *ways)
    if hasattr(graph, "is_multigraph"):
        return _networkx(graph)
    if _is_matrix(graph):
        return _matrix(graph)
    if isinstance(graph, torch.Tensor | np.ndarray | list | tuple):
        rows, columns = graph.sparse_size() if hasattr(graph, "sparse_size") else (0, 0)  # PyG's EdgeIndex
        return _Form(graph, max(rows or 0, columns or 0))
    return _held(graph)


def _held(graph: Any) -> _Form:
    named = isinstance(graph, Mapping)
    items = graph if named else getattr(graph, "__dict__", {})
    if hasattr(graph, "to_dict") and not hasattr(graph, "columns"):  # PyG's Data, and not a frame
        items = graph.to_dict()
    held = {str(name): one for name, one in items.items()}
    indices = [name for name in ("edge_index", "adj_t") if held.get(name) is not None]
    if len(indices) != 1:
        raise DataError(
            f"the graph is of type {type(graph).__name__} and has {' and '.join(indices) or 'no edge_index'}: give "
            f"one, [2, edges], row 0 the sources; of a PyG data set dataset[0], of a frame "
            f"frame[['source', 'target']].to_numpy().T"
        )
    index = held.pop(indices[0])
    inner = _matrix(index, into=True) if indices == ["adj_t"] else _given(index)
    counted = [len(one) for key in _COUNTED if isinstance(one := held.get(key), list)]
    counted += [held[key].shape[0] for key in _COUNTED if getattr(held.get(key), "ndim", 0)]
    count = _whole(held.pop("num_nodes", None))
    if count is None and not inner.exact:
        inner = inner._replace(vertices=max([inner.vertices, *counted]))
    elif count is not None:
        inner = inner._replace(vertices=count, exact=True)
    return inner._replace(held=held, leave="graph[{0!r}] = None" if named else "graph.{0} = None")


def _is_matrix(given: Any) -> bool:
    sparse = isinstance(given, torch.Tensor) and given.layout is not torch.strided
    return sparse or hasattr(given, "tocoo") or hasattr(given, "sparse_sizes")


def _matrix(given: Any, into: bool | None = None) -> _Form:
    """Read a sparse matrix; ``into`` means that a row is a target."""
    shape = tuple(given.sparse_sizes() if hasattr(given, "sparse_sizes") else given.shape)
    if len(shape) != 2 or shape[0] != shape[1]:
        raise DataError(f"a matrix of shape {shape}: give a square adjacency, one row and one column per vertex")
    if hasattr(given, "tocoo"):  # SciPy's, whose row is the source in PyG, DGL and networkx
        coo, kind, into, clear = given.tocoo(), given.format, False, "give matrix != 0"
        row, column, values = coo.row, coo.col, coo.data
    elif hasattr(given, "coo"):  # torch_sparse's
        (row, column, values), kind, clear = given.coo(), None, "matrix = matrix.set_value(None)"
    else:
        coo, kind, clear = given.detach().to_sparse_coo().coalesce(), given.layout, "matrix.values().fill_(1.0)"
        (row, column), values = coo.indices(), coo.values()
    row, column = (np.asarray(one.cpu() if isinstance(one, torch.Tensor) else one) for one in (row, column))
    if kind in _BLOCKS:
        there = np.asarray(values) != 0
        row, column, values = row[there], column[there], values[there]
    if into is None:
        key, other = row.astype(np.int64) * shape[0] + column, column.astype(np.int64) * shape[0] + row
        if not np.array_equal(np.sort(key), np.sort(other)):
            raise DataError(
                "this sparse matrix is not symmetric. PyG's to_edge_index reads a row as a source, its layers as a "
                "target: give edge_index, or torch.stack([column, row]) if a row is a target"
            )
    on_edges = {} if values is None else {"the matrix": values}
    return _Form((column, row) if into else (row, column), shape[0], True, {}, on_edges, clear=clear)


def _networkx(graph: Any) -> _Form:
    """Read a networkx graph; an undirected one has each edge in both directions."""
    names = list(graph.nodes)
    if all(isinstance(one, Integral) for one in names) and names != sorted(names):
        raise DataError(
            "the integer names of this networkx graph are out of order. PyG numbers vertices in the order of "
            "graph.nodes, DGL by their names: give nx.convert_node_labels_to_integers(graph, ordering='sorted') or "
            "'default'"
        )
    place = {name: number for number, name in enumerate(names)}
    pairs = [(place[one], place[other]) for one, other in graph.to_directed(as_view=True).edges()]
    on_edges = {
        key: [value]
        for *_, found in graph.edges(data=True)
        for key, value in found.items()
        if not (isinstance(value, Real) and value == 1)
    }
    held: dict[str, Any] = {}
    for key in dict.fromkeys(key for _, found in graph.nodes(data=True) for key in found):
        with suppress(KeyError):  # an attribute of some vertices only
            held[str(key)] = [found[key] for _, found in graph.nodes(data=True)]
    clear = "for *_, found in graph.edges(data=True): found.clear()"
    return _Form(np.array(pairs, np.int64).reshape(-1, 2).T, len(names), True, held, on_edges, clear=clear)


def _index(given: Any) -> npt.NDArray[Any]:
    nested = isinstance(given, list | tuple)
    if nested:
        try:
            arrays = [one.cpu() if isinstance(one, torch.Tensor) else one for one in given]
            index = np.stack(arrays) if arrays and hasattr(arrays[0], "ndim") else np.array(arrays)
        except (TypeError, ValueError) as error:
            raise DataError(
                f"edge_index is a {type(given).__name__} of unequal rows: give a tensor [2, edges]; for OGB's "
                "(graph, labels), give graph and tensors={'y': labels}"
            ) from error
        if index.shape == (2, 2) and isinstance(given[0], list | tuple):
            raise DataError(f"{given} is ambiguous: give torch.tensor(pairs).T, or a tensor [2, edges]")
    else:
        index = given
        if isinstance(given, torch.Tensor):
            index = (given.float() if given.is_floating_point() else given).detach().cpu().numpy()
    if index.ndim != 2 or index.shape[0] != 2:
        way = "give [2, edges], row 0 the sources"
        if index.ndim == 2 and index.shape[1] == 2:
            way = "give torch.tensor(pairs).T, [2, edges]" if nested else "give edge_index.T, [2, edges]"
        elif index.ndim == 2 and index.shape[0] == index.shape[1]:
            way += "; of a dense adjacency, scipy.sparse.coo_array(adjacency)"
        raise DataError(f"edge_index has shape {index.shape}: {way}")
    if index.dtype.kind not in "iu" or np.ma.is_masked(index):
        kind = getattr(given, "dtype", index.dtype)
        raise DataError(f"edge_index has dtype {kind}: give integer ids of vertices")
    return index


def _whole(count: Any) -> int | None:
    if count is None:
        return None
    found = np.asarray(count)
    if found.size != 1 or found.dtype.kind not in "iu":
        raise DataError(f"num_nodes = {count}: give an integer")
    return int(found.reshape(()))


def _tensors(given: _Form, vertices: int, edges: int) -> dict[str, torch.Tensor]:
    found = {}
    on_edges = [(str(name), one, given.clear) for name, one in given.on_edges.items()]
    for name, one, way in [*((name, one, given.leave) for name, one in given.held.items()), *on_edges]:
        without, one = way.format(name), _rows(one, vertices)
        length = one.shape[0] if getattr(one, "ndim", 0) else len(one) if isinstance(one, list) else None
        if one is None or (length is None and not hasattr(one, "sparse_sizes")):
            continue  # a number, or a word
        if way is given.clear or _OF_EDGES.search(name) or length == edges != vertices:
            if _is_matrix(one) or not isinstance(one, torch.Tensor | np.ndarray) or not bool((one == 1).all()):
                raise DataError(
                    f"{name} holds values of edges, but layers here do not support weights or features of edges; "
                    f"to train without them: {without}"
                )
        elif isinstance(one, list) or (isinstance(one, np.ndarray) and one.dtype.kind not in "biufc"):
            continue  # words
        elif np.ma.is_masked(one):
            raise DataError(f"{name} has masked values: give {name}.filled(…), or leave it out: {without}")
        elif _is_matrix(one):
            raise DataError(f"{name} is sparse: give dense features")
        elif length != vertices:
            raise DataError(
                f"{name} has shape {tuple(one.shape)}, but the graph has {vertices:,} vertices: give num_nodes if "
                f"the last ones have no edges, or leave it out: {without}"
            )
        elif isinstance(one, torch.Tensor):
            found[name] = one
        elif isinstance(one, np.ndarray):
            found[name] = torch.from_numpy(np.ascontiguousarray(one, one.dtype.newbyteorder("=")))
        else:
            raise DataError(f"{name} is a {type(one).__name__}: give a tensor or an array, or leave it out: {without}")
    return found


def _rows(given: Any, vertices: int) -> Any:
    """Convert a list with one number or row per vertex to a tensor; return other values as they are."""
    if isinstance(given, np.ndarray) and given.dtype == object:
        given = list(given)
    if not isinstance(given, list) or len(given) != vertices:
        return given
    with suppress(TypeError, ValueError, RuntimeError):  # words, or unequal rows
        if isinstance(given[0], torch.Tensor):
            return torch.stack(given)
        return torch.as_tensor(np.array(given) if hasattr(given[0], "ndim") else given)
    return given


def rows_of(tensors: Mapping[str, Any], vertices: int) -> dict[str, npt.NDArray[Any]]:
    """Return the tensors to store with a cut graph as arrays (vertices, ...); raise ConfigError for others."""
    found = {}
    for name, given in tensors.items():
        if not name or name.startswith(".") or "/" in name or "\0" in name:
            raise ConfigError(f"tensor {name!r}: the name becomes a file name: leave slashes out")
        if _OF_EDGES.search(name):
            raise ConfigError(
                f"tensor {name!r} belongs to edges, which layers here do not support: leave it out, or rename it"
            )
        if not isinstance(given, torch.Tensor | np.ndarray):
            raise ConfigError(f"tensor {name!r} is of type {type(given).__name__}: give a tensor, or an array of NumPy")
        if isinstance(given, torch.Tensor):
            try:
                given = given.detach().cpu().numpy()
            except TypeError as error:  # sparse, or a dtype that NumPy lacks
                raise ConfigError(
                    f"tensor {name!r} is {given.dtype}, {given.layout}, which NumPy files do not support: give a "
                    "dense tensor, float32 for bfloat16; g.constant(x, torch.bfloat16) converts it back on use"
                ) from error
        if given.ndim < 1 or given.shape[0] != vertices:
            raise ConfigError(
                f"tensor {name!r} has shape {tuple(given.shape)}: give {vertices} rows, one per vertex, or "
                "num_nodes= if the last vertices have no edges"
            )
        if given.dtype.kind not in "biufc":
            raise ConfigError(f"tensor {name!r} is of dtype {given.dtype}: give numbers")
        found[name] = given
    return found
