"""Graphs as users of other tools hold them. Classes of PyG, torch_sparse and DGL are stand-ins with the same fields."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
import torch

from brought import brought, refusal
from uneven import graph
from uneven.cli import main
from uneven.cli.graph_files import read_graph
from uneven.errors import DataError
from uneven_bench.mutations.make import documents


class Data(SimpleNamespace):
    """PyG's, which names only what it was given."""

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))


class HeteroData:
    """PyG's, with one type of vertices."""

    def to_homogeneous(self, **kwargs: bool) -> Data:
        return Data(edge_index=EDGES, num_nodes=6)


class EdgeIndex(torch.Tensor):
    """PyG's, which may know how many vertices there are."""

    @staticmethod
    def __new__(cls: Any, index: torch.Tensor, sparse_size: tuple[int, int]) -> Any:
        made = torch.Tensor._make_subclass(cls, index)
        made.sparse_size = lambda: sparse_size
        return made


EDGES = torch.tensor([[0, 1, 1, 2, 3, 0], [1, 0, 2, 1, 3, 2]])
"""As many as vertices, one from a vertex to itself, and the last two vertices have none."""
BOTH = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
"""Symmetric, of six vertices as well."""
X = torch.arange(12.0).reshape(6, 2)
DENSE = np.zeros((6, 6), np.int64)
DENSE[tuple(EDGES.numpy())] = 1


class SparseTensor:
    """torch_sparse's."""

    def __init__(self, row: torch.Tensor, col: torch.Tensor, value: torch.Tensor | None = None) -> None:
        self.row, self.col, self.value = row, col, value

    def coo(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        return self.row, self.col, self.value

    def sparse_sizes(self) -> tuple[int, int]:
        return 6, 6


def dgl(homogeneous: bool = True, **edata: torch.Tensor) -> Any:
    """A DGLGraph."""
    return SimpleNamespace(
        edges=lambda: (EDGES[0].int(), EDGES[1].int()),
        num_nodes=lambda: 6,
        ndata={"x": X},
        edata={"_ID": torch.arange(6), **edata},
        is_block=False,
        is_homogeneous=homogeneous,
        is_multigraph=False,
    )


def networkx(kind: type[nx.Graph], **attributes: Any) -> nx.Graph:
    """Vertices with words as names."""
    made = kind()
    for name, row in zip("fedcba", X.tolist(), strict=True):
        made.add_node(name, x=row, club="east")
    made.add_edges_from(("fedcba"[a], "fedcba"[b], attributes) for a, b in EDGES.T.tolist())
    return made


def torch_sparse(layout: torch.layout, value: float = 1.0) -> torch.Tensor:
    dense = torch.zeros(6, 6).index_put_((BOTH[0], BOTH[1]), torch.tensor(value))
    return dense.to_sparse(layout=layout)


def right(given: Any, edges: torch.Tensor = EDGES) -> graph.PartedGraph:
    """Load a graph; sums over in-neighbours must be those of torch."""
    g = graph.load(given)
    assert (g.rows, g.edges) == (6, edges.shape[1])
    torch.testing.assert_close(g.gather(g.sum(X[g.ids])), torch.zeros(6, 2).index_add(0, edges[1], X[edges[0]]))
    for name in {"x", "node_feat", "pos"}.intersection(g.source.store.names):
        torch.testing.assert_close(g.gather(g.tensor(name)), X)
    return g


ONES, HALVES = torch.ones(6), torch.full((6,), 0.5)
UNDIRECTED = torch.cat([EDGES, EDGES.flip(0)[:, [0, 1, 2, 3, 5]]], dim=1)  # networkx counts both directions as one


def case(peer: str, what: str, make: Callable[[], Any], edges: torch.Tensor = EDGES) -> Any:
    return pytest.param(make, edges, marks=brought("graphs", peer, what), id=what)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize(
    ("make", "edges"),
    [
        case("PyG", "`Data` with `x`, `y`, masks", lambda: Data(x=X, edge_index=EDGES, y=torch.arange(6))),
        case("PyG", "`Data` without `x`, with `num_nodes`", lambda: Data(edge_index=EDGES, num_nodes=6)),
        case("PyG", "`Data` with `pos`, the last vertices isolated", lambda: Data(edge_index=EDGES, pos=X)),
        case("PyG", "`Data` with labels as NumPy's array", lambda: Data(edge_index=EDGES.int(), y=np.arange(6))),
        case("PyG", "`Data` with `edge_weight` of ones", lambda: Data(x=X, edge_index=EDGES, edge_weight=ONES)),
        case("PyG", "`EdgeIndex` with `sparse_size`", lambda: EdgeIndex(EDGES, sparse_size=(6, 6))),
        case("PyG", "`Data` with `adj_t`", lambda: Data(x=X, adj_t=SparseTensor(EDGES[1], EDGES[0]))),
        case("PyG", "`SparseTensor`, symmetric", lambda: SparseTensor(*BOTH), BOTH),
        *(
            case("torch", f"`{kind}`, symmetric", lambda kind=kind: torch_sparse(kind), BOTH)
            for kind in (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc)
        ),
        case("DGL", "`DGLGraph` with `ndata`, int32", dgl),
        case("DGL", "`(sources, targets)`", lambda: {"edge_index": (EDGES[0], EDGES[1]), "num_nodes": 6}),
        case("OGB", "dictionary with `node_feat`", lambda: {**OGB, "edge_feat": None}),
        case("networkx", "`DiGraph` with words as vertex names", lambda: networkx(nx.DiGraph)),
        case("networkx", "`Graph`: both directions", lambda: networkx(nx.Graph), UNDIRECTED[:, [0, 1, 2, 3, 4, 5, 10]]),
        case("networkx", "`MultiGraph`", lambda: networkx(nx.MultiGraph), UNDIRECTED),
        case("networkx", "edges with `weight=1`", lambda: networkx(nx.DiGraph, weight=1.0)),
        *(
            case("SciPy", f"`{kind}` matrices and arrays", lambda kind=kind: sp.coo_array(DENSE).asformat(kind))
            for kind in ("csr", "csc", "coo", "lil", "dok", "dia", "bsr")
        ),
        case("SciPy", "bool matrices", lambda: sp.csr_matrix(DENSE.astype(bool))),
        case("SciPy", "int8 matrices", lambda: sp.csr_matrix(DENSE.astype(np.int8))),
        case("NumPy", "parallel edges", lambda: {"edge_index": np.tile(EDGES, 2), "x": X.numpy()}, EDGES.repeat(1, 2)),
    ],
)
def test_a_graph_is_read_right(make: Callable[[], Any], edges: torch.Tensor) -> None:
    right(make(), edges)


@brought("graphs", "PyG", "features, labels and masks as lists or arrays of objects, the last vertices isolated")
def test_lists_of_numbers_are_tensors() -> None:
    words = {"names": list("abcdef"), "num_sampled_nodes": [2, 4], "tokens": [["a"], ["a", "b"], [], [], [], []]}
    for rows in (X.tolist(), list(X), list(X.numpy())):
        lists = {"x": rows, "y": list(range(6)), "train_mask": [True] * 6, "label": np.arange(6).astype(object)}
        g = right({"edge_index": EDGES, **lists, **words})
        assert set(g.source.store.names) == lists.keys()
        assert (g.y.tolist(), g.tensor("train_mask").dtype) == (g.ids.tolist(), torch.bool)


OGB = {"edge_index": EDGES.numpy(), "node_feat": X.numpy(), "num_nodes": 6}
WHOLE = (np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64, ">i4")


@brought("graphs", "NumPy", "every integer type")
@pytest.mark.parametrize("kind", WHOLE)
def test_every_whole_number_is_an_id(kind: Any) -> None:
    index = EDGES.numpy().astype(kind)
    right({"edge_index": index, "num_nodes": 6})
    if kind != ">i4":
        right({"edge_index": torch.from_numpy(index), "num_nodes": np.array([6])})


def cleared(made: nx.Graph) -> nx.Graph:
    for *_, found in made.edges(data=True):
        found.clear()
    return made


PAIRS = EDGES.T.tolist()
WEIGHTED = sp.csr_array(DENSE * 0.5)


def refused(peer: str, what: str, make: Callable[[], Any], match: str, then: Callable[[], Any]) -> Any:
    return pytest.param(make, match, then, marks=brought("graphs", peer, what, refused=True), id=what)


def frame() -> Any:
    import pandas  # takes seconds, and every process of the tests collects this file

    return pandas.DataFrame({"source": EDGES[0], "target": EDGES[1]})


def plain() -> Data:
    return Data(edge_index=EDGES, x=X)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize(
    ("make", "match", "then"),
    [
        *(
            refused("PyG", f"`Data` with `{name}`", make, rf"{name} holds values of edges.*graph\.{name} = None", plain)
            for name, make in (
                ("edge_weight", lambda: Data(x=X, edge_index=EDGES, edge_weight=HALVES)),
                ("edge_attr", lambda: Data(x=X, edge_index=EDGES, edge_attr=X)),
                ("weight", lambda: Data(x=X, edge_index=EDGES, weight=HALVES)),
                ("Edge_Attr", lambda: Data(x=X, edge_index=EDGES, Edge_Attr=X)),
                ("hyperedge_attr", lambda: Data(x=X, edge_index=EDGES, hyperedge_attr=X)),
                ("efeat", lambda: Data(x=X, edge_index=EDGES, efeat=X)),
            )
        ),
        refused(
            *("PyG", "`Data` with another number of rows"),
            lambda: Data(edge_index=EDGES, x=X, train_idx=torch.arange(3)),
            r"train_idx has shape \(3,\), but the graph has 6 vertices: give num_nodes.*graph\.train_idx = None",
            plain,
        ),
        refused(
            *("NumPy", "masked values"),
            lambda: {"edge_index": EDGES, "x": np.ma.masked_less(X.numpy(), 3)},
            r"x has masked values: give x\.filled",
            plain,
        ),
        refused(
            *("PyG", "`Data` with a sparse `x`"),
            lambda: Data(edge_index=EDGES, x=X.to_sparse()),
            "x is sparse.*give dense features",
            plain,
        ),
        refused(
            *("PyG", "`HeteroData`", HeteroData, r"data\.to_homogeneous\(add_edge_type=False\)"),
            lambda: Data(edge_index=EDGES, num_nodes=6),
        ),
        refused(
            *("PyG", "`adj_t` with values"),
            lambda: Data(x=X, adj_t=SparseTensor(EDGES[1], EDGES[0], HALVES)),
            r"matrix holds values of edges.*matrix\.set_value\(None\)",
            lambda: Data(x=X, adj_t=SparseTensor(EDGES[1], EDGES[0])),
        ),
        refused(
            *("PyG", "`SparseTensor`, not symmetric", lambda: SparseTensor(*EDGES)),
            *(r"not symmetric.*torch\.stack\(\[column, row\]\)", plain),
        ),
        refused(
            *("PyG", "data set instead of its graph", lambda: SimpleNamespace(root="x", _data=plain())),
            *(r"dataset\[0\]", plain),
        ),
        refused(
            *("torch", "sparse tensors with values", lambda: torch_sparse(torch.sparse_csr, 0.5)),
            *(r"matrix\.values\(\)\.fill_\(1\.0\)", plain),
        ),
        refused("DGL", "`edata`", lambda: dgl(w=HALVES), r"w holds values .*graph\.edata\.pop\('w'\)", dgl),
        refused("DGL", "heterograph", lambda: dgl(False), r"dgl\.to_homogeneous\(graph, store_type=False\)", dgl),
        refused(
            *("OGB", "dictionary with `edge_feat`", lambda: {**OGB, "edge_feat": X.numpy()}),
            *(r"edge_feat holds values .*graph\['edge_feat'\] = None", lambda: {**OGB, "edge_feat": None}),
        ),
        refused("OGB", "`(graph, labels)`", lambda: (OGB, np.zeros((6, 1))), "tensors={'y': labels}", lambda: OGB),
        refused("OGB", "several types", lambda: {"edge_index_dict": {}}, "one edge_index over all vertices", plain),
        refused(
            *("networkx", "weights", lambda: networkx(nx.DiGraph, weight=0.5)),
            r"weight holds .*for \*_, found in graph\.edges\(data=True\): found\.clear\(\)",
            lambda: cleared(networkx(nx.DiGraph, weight=0.5)),
        ),
        refused(
            *("networkx", "integers as vertex names, out of order"),
            lambda: nx.Graph([(0, 2), (2, 1)]),
            r"nx\.convert_node_labels_to_integers\(graph, ordering='sorted'\)",
            plain,
        ),
        refused(
            *("SciPy", "matrices with values", lambda: WEIGHTED, "give matrix != 0", lambda: WEIGHTED != 0),
        ),
        refused(
            *("SciPy", "matrices that are not square", lambda: WEIGHTED[:3], "a square adjacency", plain),
        ),
        refused("pandas", "frames", frame, r"frame\[\['source', 'target'\]\]\.to_numpy\(\)\.T", plain),
        refused("NumPy", "`[edges, 2]`", lambda: EDGES.numpy().T, r"give edge_index\.T", plain),
        refused("NumPy", "a dense adjacency", lambda: DENSE, r"scipy\.sparse\.coo_array\(adjacency\)", plain),
        refused("Python", "lists of pairs", lambda: PAIRS, r"give torch\.tensor\(pairs\)\.T", plain),
        refused("Python", "two pairs", lambda: [(0, 1), (2, 3)], r"give torch\.tensor\(pairs\)\.T", plain),
        refused(
            *("Python", "ids with wide gaps", lambda: np.array([[0, 2**31 - 9], [1, 2]])),
            *("return_inverse=True", plain),
        ),
    ],
)
def test_a_graph_is_refused_with_the_way_out(
    make: Callable[[], Any], match: str, then: Callable[[], Any], tmp_path: Path
) -> None:
    for read in (graph.load, lambda given: graph.partition(given, path=tmp_path / "p", parts=2)):
        with refusal(match):
            read(make())
    assert not (tmp_path / "p").exists()
    right(then())


def test_tensors_of_edges_are_not_those_of_vertices(tmp_path: Path) -> None:
    with refusal("'edge_attr' belongs to edges"):
        graph.partition(EDGES, 6, path=tmp_path / "p", tensors={"edge_attr": X})
    with refusal("num_nodes= if the last vertices have no edges"):
        graph.partition(EDGES, path=tmp_path / "p", tensors={"x": X})
    (tmp_path / "list").write_text("0 1\n")
    with refusal("has no partitioned graph"):
        graph.load(tmp_path / "list")


def text(separator: str, end: str = "\n", rest: str = "") -> str:
    return "".join(f"{a}{separator}{b}{rest}{end}" for a, b in PAIRS)


def listed(what: str, content: str | bytes, match: str | None = None) -> Any:
    raw = content.encode() if isinstance(content, str) else content
    return pytest.param(raw, match, marks=brought("graphs", "text", what, refused=match is not None), id=what)


@pytest.mark.parametrize(
    ("content", "match"),
    [
        listed("blanks, a comment, a blank last line", "# from to\n" + text("  ") + "\n"),
        listed("tabs, CRLF, comments after edges", text("\t", " # why\r\n")),
        listed("commas and a header line", "source,target\n" + text(", ")),
        listed("a byte-order mark", b"\xef\xbb\xbf" + text(";").encode()),
        listed("gzip", gzip.compress(text(",").encode())),
        listed("weights that are 1", "src,dst,weight\n" + text(",", rest=",1")),
        listed("networkx's `write_edgelist`", text(" ", rest=" {}")),
        listed("a KONECT header", "% asym unweighted\n" + text(" ")),
        listed("weights", text(" ", rest=" 0.5"), "line 1, '0 1 0.5': .*keep two columns"),
        listed("target before source", "target,source\n" + text(","), "columns source and target, in this order"),
        listed("a column of row numbers", ",source,target\n0,0,1\n", "line 1, .*give two vertex ids"),
        listed("another number of columns", text(" ") + "4\n", "line 7, '4': give two vertex ids"),
        listed("mixed separators in one file", text(" ") + "4,5\n", "line 7, '4,5'"),
        listed("ids below 0 or not whole", "0 1\n-1 2\n", "line 2, '-1 2'"),
        listed("words as vertex names", text(" ") + "ann bob\n", "line 7, 'ann bob'"),
        listed("MatrixMarket", "%%MatrixMarket matrix\n", "scipy.io.mmread"),
        listed("UTF-16", text(" ").encode("utf-16"), "line 1, "),
        listed("an empty file", "", "holds no edges"),
        listed("gzip cut off", gzip.compress(text(",").encode())[:-9], "ended before the end"),
    ],
)
def test_a_list_of_edges(content: bytes, match: str | None, tmp_path: Path) -> None:
    (tmp_path / "edges").write_bytes(content)
    if match is None:
        assert torch.equal(read_graph(tmp_path / "edges").edge_index, EDGES)
    else:
        with refusal(match):
            read_graph(tmp_path / "edges")


def test_a_list_of_edges_is_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "edges.csv.gz").write_bytes(gzip.compress(text(",").encode()))
    with pytest.raises(SystemExit) as ended:
        main(["graph", "partition", str(tmp_path / "edges.csv.gz"), str(tmp_path / "p"), "--parts", "2"])
    assert ended.value.code == 0
    assert "4 vertices, 6 directed edges" in capsys.readouterr().out


@brought("graphs", "SciPy", "`save_npz`")
def test_a_matrix_in_a_file(tmp_path: Path) -> None:
    for kind in ("csr", "csc", "coo", "dia"):
        sp.save_npz(tmp_path / "a.npz", sp.coo_array(DENSE).asformat(kind))
        right(read_graph(tmp_path / "a.npz"))


@brought("graphs", "SciPy", "`save_npz`, with values", refused=True)
def test_a_matrix_with_values_in_a_file(tmp_path: Path) -> None:
    sp.save_npz(tmp_path / "a.npz", WEIGHTED)
    with refusal("give matrix != 0"):
        read_graph(tmp_path / "a.npz")
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\1\0")
    with refusal("give a list of edges, or an .npz"):
        read_graph(tmp_path / "a.npy")
    np.savez(tmp_path / "a.npz", edge_index=EDGES, edge_weight=HALVES, num_nodes=6)
    with refusal("edge_weight holds values of edges"):
        read_graph(tmp_path / "a.npz")


def test_mutated_lists_are_refused_or_read_as_numpy_does(tmp_path: Path) -> None:
    file = tmp_path / "edges"
    kinds = {
        None: [text(" "), "# a b\r\n" + text("\t", "\r\n"), text(" ", rest=" {}") + "\n"],
        ",": ["source,target\n" + text(",")],
        ";": [text(";", rest=";1")],
    }
    outcomes = [0, 0]
    for mark, seeds in kinds.items():
        for _, content in zip(range(334), documents(1, [one.encode() for one in seeds]), strict=False):
            file.write_bytes(content)
            try:
                found = read_graph(file).edge_index.numpy()
            except DataError:
                outcomes[0] += 1
                continue
            outcomes[1] += 1
            lines = [line.split(b"#")[0].strip() for line in content.splitlines()]
            first = next(number for number, line in enumerate(lines) if line)
            given = {"delimiter": mark, "usecols": (0, 1), "ndmin": 2, "encoding": "latin1"}
            wanted = np.loadtxt(file, np.int64, skiprows=first + lines[first][:1].isalpha(), **given)
            assert np.array_equal(found, wanted.T), content
    assert min(outcomes) > 200
