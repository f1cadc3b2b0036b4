"""A cut graph on disk: written once, mapped into memory by every worker, which reads its own part of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from uneven.errors import ConfigError, DataError
from uneven.graph.clones import Holders, roots
from uneven.graph.cut.base import CutFigures, EdgeCut, Ids, figures
from uneven.graph.edge_list import EdgeList
from uneven.npy import load_array

SCHEMA = 1
_META = "graph.json"


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """What is known of a cut graph without reading it.

    Attributes:
        bounds: where each part's edges begin, and the end.
        shares: what each part was to get, which add up to 1.
        beta: what a root costs, in edges.
        fingerprint: of the graph; see :meth:`EdgeList.fingerprint`.
    """

    vertices: int
    edges: int
    method: str
    seed: int
    bounds: tuple[int, ...]
    shares: tuple[float, ...]
    beta: float
    fingerprint: str
    schema: int = SCHEMA

    @property
    def parts(self) -> int:
        """How many."""
        return len(self.shares)


class GraphStore:
    """A folder with a cut graph. Vertices are numbered so that neighbours are near each other.

    Attributes:
        facts: what the file of facts says.
        path: the folder.

    Raises:
        DataError: there is no cut graph, or one of another schema.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            told = json.loads((self.path / _META).read_text())
        except FileNotFoundError:
            raise DataError(f"{self.path} holds no cut graph: write one with uneven.graph.partition") from None
        except ValueError:
            raise DataError(f"{self.path / _META} is damaged: partition the graph again") from None
        if told.get("schema") != SCHEMA:
            raise DataError(
                f"{self.path}: schema {told.get('schema')}, and this version reads {SCHEMA}: partition again"
            )
        for name in ("bounds", "shares"):
            told[name] = tuple(told[name])
        self.facts = StoreFacts(**told)

    def array(self, name: str) -> npt.NDArray[Any]:
        """One array, mapped: source, target (int32 [edges], by part), order (each vertex's id in the graph), …"""
        try:
            return load_array(self.path / f"{name}.npy", mapped=True)
        except FileNotFoundError:
            raise DataError(f"{self.path} has no {name}: partition the graph again") from None

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tensors with a row for each vertex."""
        return tuple(sorted(one.stem for one in (self.path / "tensors").glob("*.npy")))

    def rows(self, name: str, ids: Ids) -> torch.Tensor:
        """Rows of a tensor.

        Raises:
            DataError: it was not given to ``partition``.
        """
        if name not in self.names:
            raise DataError(f"{self.path} has no tensor {name!r}, only {', '.join(self.names) or 'none'}")
        return torch.from_numpy(np.asarray(self.array(f"tensors/{name}")[ids]))

    def holders(self, parts: Sequence[range]) -> Holders:
        """Which group of parts has an edge of which vertex."""
        sides = []
        for name in ("sends", "takes"):
            packed = self.array(name)
            each = [np.bitwise_or.reduce(packed[one.start : one.stop], axis=0) for one in parts]
            sides.append(np.unpackbits(np.stack(each), axis=1, count=self.facts.vertices).astype(np.bool_))
        return Holders(*sides)

    def figures(self) -> CutFigures:
        """How good the cut is."""
        each = [range(one, one + 1) for one in range(self.facts.parts)]
        return figures(self.holders(each).held, self.facts.bounds, self.facts.shares)


def write_store(
    path: Path,
    edges: EdgeList,
    cut: EdgeCut,
    facts: Mapping[str, Any],
    rank: npt.NDArray[np.int64],
    tensors: Mapping[str, npt.NDArray[Any]],
) -> GraphStore:
    """Write a cut graph; the file of facts comes last, so what was interrupted is no store.

    Args:
        facts: method, seed, shares, beta.
        rank: int64 [vertices], each vertex's number here.
        tensors: name → a row for each vertex.

    Raises:
        ConfigError: there is something else at ``path``.
    """
    if path.exists() and not (path / _META).exists() and any(path.iterdir()):
        raise ConfigError(f"{path} is there and holds no cut graph: name a new folder")
    (path / "tensors").mkdir(parents=True, exist_ok=True)
    (path / _META).unlink(missing_ok=True)
    for old in (path / "tensors").glob("*.npy"):
        old.unlink()
    order = np.empty(edges.vertices, np.int32)
    order[rank] = np.arange(edges.vertices, dtype=np.int32)
    number = rank.astype(np.int32)
    source, target = number[edges.source[cut.order]], number[edges.target[cut.order]]
    told = StoreFacts(
        vertices=edges.vertices, edges=len(edges), bounds=cut.bounds, fingerprint=f"{edges.fingerprint():016x}", **facts
    )
    holders = Holders.of(source, target, cut.bounds, edges.vertices)
    counts = np.diff(np.asarray(cut.bounds)).tolist()
    rooted = roots(holders.held, told.shares, counts, told.beta) if cut.owners is None else cut.owners[order]
    arrays: dict[str, npt.NDArray[Any]] = {
        "source": source,
        "target": target,
        "order": order,
        "sends": np.packbits(holders.sends, axis=1),
        "takes": np.packbits(holders.takes, axis=1),
        "roots": rooted.astype(np.int16),
        "in_degree": np.bincount(target, minlength=edges.vertices).astype(np.int32),
        "loops": np.bincount(source[source == target], minlength=edges.vertices).astype(np.int32),
    }
    for name, array in arrays.items():
        np.save(path / f"{name}.npy", array)
    for name, one in tensors.items():
        np.save(path / "tensors" / f"{name}.npy", one[order])
    (path / _META).write_text(json.dumps(asdict(told), indent=1))
    return GraphStore(path)
