"""A cut graph: metadata, and named arrays. Vertices are renumbered so that neighbours are close to each other.

It is a folder that is written once and memory-mapped by every worker, or a whole graph in memory, in one part.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from uneven.errors import ConfigError, DataError
from uneven.graph.edges import graph_of
from uneven.graph.pure.clone_plan import Holders, roots
from uneven.graph.pure.cut.partitioner import CutFigures, EdgeCut, figures
from uneven.graph.pure.edge_list import EdgeList, Ids, Wholes
from uneven.runtime.npy import load_array

SCHEMA = 1
_META = "graph.json"


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """The metadata of a cut graph."""

    vertices: int
    edges: int
    method: str
    seed: int
    bounds: tuple[int, ...]  # where each part's edges begin, and the end
    shares: tuple[float, ...]  # target of each part; their sum is 1
    beta: float  # cost of a root, in edges
    fingerprint: str  # see :meth:`EdgeList.fingerprint`
    schema: int = SCHEMA

    @property
    def parts(self) -> int:
        return len(self.shares)


class GraphStore:
    """The folder ``path`` with a cut graph; ``facts`` is its metadata, ``where`` its name for messages.

    Raises:
        DataError: there is no cut graph, or it has another schema version.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.where = str(path)
        try:
            told = json.loads((self.path / _META).read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            raise DataError(f"{self.path} has no partitioned graph: write one with uneven.graph.partition") from None
        except ValueError:
            raise DataError(f"{self.path / _META} is damaged: partition the graph again") from None
        if told.get("schema") != SCHEMA:
            raise DataError(
                f"{self.path}: schema {told.get('schema')}, but this version reads {SCHEMA}: partition again"
            )
        told.update({name: tuple(told[name]) for name in ("bounds", "shares")})
        self.facts = StoreFacts(**told)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the per-vertex tensors."""
        return tuple(sorted(one.stem for one in (self.path / "tensors").glob("*.npy")))

    def array(self, name: str) -> npt.NDArray[Any]:
        """Map the array ``name``: source, target (int32 (edges,), by part), order (original ids, (vertices,)), …

        Raises:
            DataError: the folder has no such array.
        """
        try:
            return load_array(self.path / f"{name}.npy", mapped=True)
        except FileNotFoundError:
            raise DataError(f"{self.path} has no {name}: partition the graph again") from None

    def rows(self, name: str, ids: Ids) -> Tensor:
        """Return rows ``ids`` of tensor ``name``, (n, ...); raise :class:`DataError` if there is none."""
        if name not in self.names:
            raise DataError(f"{self.where} has no tensor {name!r}, only {', '.join(self.names) or 'none'}")
        return self._rows(name, ids)

    def _rows(self, name: str, ids: Ids) -> Tensor:
        return torch.from_numpy(np.asarray(self.array(f"tensors/{name}")[ids]))

    def edges(self, parts: range) -> EdgeList:
        """Return the edges of consecutive parts."""
        mine = slice(self.facts.bounds[parts.start], self.facts.bounds[parts.stop])
        source, target = (np.asarray(self.array(name)[mine]) for name in ("source", "target"))
        return EdgeList(source, target, self.facts.vertices)

    def holders(self, parts: Sequence[range]) -> Holders:
        """Return the holders of each vertex, by group of parts."""
        sides = []
        for name in ("sends", "takes"):
            packed = self.array(name)
            each = [np.bitwise_or.reduce(packed[one.start : one.stop], axis=0) for one in parts]
            sides.append(np.unpackbits(np.stack(each), axis=1, count=self.facts.vertices).astype(np.bool_))
        return Holders(*sides)

    def figures(self) -> CutFigures:
        """Compute the quality of the cut."""
        each = [range(one, one + 1) for one in range(self.facts.parts)]
        return figures(self.holders(each).rows(self.array("roots")), self.facts.bounds, self.facts.shares)


class WholeGraph(GraphStore):
    """A store of one part in memory, built from a graph in any format of ``partition``."""

    where = "the graph"

    def __init__(self, graph: Any) -> None:
        edges, self._tensors = graph_of(graph)
        told = {"method": "whole", "seed": 0, "shares": (1.0,), "beta": 0.0}
        self.facts, self._arrays = laid_out(edges, EdgeCut.of(np.zeros(len(edges), np.int32), 1), told)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._tensors))

    def array(self, name: str) -> npt.NDArray[Any]:
        return self._arrays[name]

    def _rows(self, name: str, ids: Ids) -> Tensor:
        return self._tensors[name][torch.from_numpy(self._arrays["order"][ids]).long()]


def laid_out(edges: EdgeList, cut: EdgeCut, told: Mapping[str, Any]) -> tuple[StoreFacts, dict[str, npt.NDArray[Any]]]:
    """Return metadata and arrays of a cut graph, (edges,) or (vertices,); ``told`` has the options of the cut."""
    facts = StoreFacts(
        vertices=edges.vertices, edges=len(edges), bounds=cut.bounds, fingerprint=f"{edges.fingerprint():016x}", **told
    )
    rank = _near_first(edges) if cut.rank is None else cut.rank
    order = np.empty(edges.vertices, np.int32)
    order[rank] = np.arange(edges.vertices, dtype=np.int32)
    number = rank.astype(np.int32)
    source, target = number[edges.source[cut.order]], number[edges.target[cut.order]]
    holders = Holders.of(EdgeList(source, target, edges.vertices), cut.bounds)
    counts = np.diff(np.asarray(cut.bounds)).tolist()
    rooted = roots(holders.held, facts.shares, counts, facts.beta) if cut.owners is None else cut.owners[order]
    return facts, {
        "source": source,
        "target": target,
        "order": order,
        "sends": np.packbits(holders.sends, axis=1),
        "takes": np.packbits(holders.takes, axis=1),
        "roots": rooted.astype(np.int16),
        "in_degree": np.bincount(target, minlength=edges.vertices).astype(np.int32),
        "loops": np.bincount(source[source == target], minlength=edges.vertices).astype(np.int32),
    }


def _near_first(edges: EdgeList) -> Wholes:
    """Return each vertex's position in reverse Cuthill–McKee order: neighbours' rows are then close in the cache."""
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import reverse_cuthill_mckee

    ones, shape = np.ones(len(edges), np.bool_), (edges.vertices, edges.vertices)
    order = reverse_cuthill_mckee(csr_matrix((ones, (edges.source, edges.target)), shape=shape))
    place = np.empty(edges.vertices, np.int64)
    place[order] = np.arange(edges.vertices)
    return place


def write_store(
    path: Path, edges: EdgeList, cut: EdgeCut, told: Mapping[str, Any], tensors: Mapping[str, npt.NDArray[Any]]
) -> GraphStore:
    """Write a cut graph with its tensors (vertices, ...); raise :class:`ConfigError` if ``path`` holds other files."""
    if path.exists() and not (path / _META).exists() and any(path.iterdir()):
        raise ConfigError(f"{path} exists but is not a folder of graph.partition: name a new folder")
    (path / "tensors").mkdir(parents=True, exist_ok=True)
    (path / _META).unlink(missing_ok=True)  # no valid store from here until the end
    for old in (path / "tensors").glob("*.npy"):
        old.unlink()
    facts, arrays = laid_out(edges, cut, told)
    for name, array in arrays.items():
        np.save(path / f"{name}.npy", array)
    for name, one in tensors.items():
        np.save(path / "tensors" / f"{name}.npy", one[arrays["order"]])
    # Last, so that an interrupted write leaves no valid store.
    (path / _META).write_text(json.dumps(asdict(facts), indent=1))
    return GraphStore(path)
