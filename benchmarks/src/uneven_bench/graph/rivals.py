"""DGL and PyG, if they are installed; else the reason."""

import importlib
import os
import sys
import warnings
from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from uneven.graph.pure.edge_list import EdgeList


@cache
def dgl() -> Any:
    """Return DGL without its graphbolt, which is for mini-batches and needs an older torch; else the reason."""
    stub = ModuleType("dgl.graphbolt")
    sys.modules.setdefault(stub.__name__, stub)
    before = os.environ.get("DGLBACKEND")
    os.environ["DGLBACKEND"] = "pytorch"  # or DGL writes a file into the user's home
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of torch, about what DGL uses
            return importlib.import_module("dgl")
    except (ImportError, OSError, AttributeError) as error:
        del sys.modules[stub.__name__]
        return f"{error}: pip install './benchmarks[graph]'"
    finally:
        if before is None:
            del os.environ["DGLBACKEND"]
        else:
            os.environ["DGLBACKEND"] = before


@cache
def pyg() -> Any:
    """Return PyG, or the reason."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        found = _imported("torch_geometric.nn")
        return found if isinstance(found, str) else _imported("torch_geometric")


def _imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except (ImportError, OSError) as error:
        return f"{error}: pip install './benchmarks[graph]'"


def left_out() -> dict[str, str]:
    """Return rival → the reason why it is left out."""
    every = {"DGL": dgl(), "PyG": pyg()}
    return {name: one for name, one in every.items() if isinstance(one, str)}


def dgl_graph(edges: EdgeList) -> Any:
    """Return DGL's fastest form: 32-bit ids, both orders made beforehand."""
    source, target = torch.from_numpy(edges.source), torch.from_numpy(edges.target)
    made = dgl().graph((source, target), num_nodes=edges.vertices).int().formats(["csc", "csr"])
    made.create_formats_()
    return made


def csr(edges: EdgeList) -> Tensor:
    """Return the sparse A (vertices, vertices), a row for each target, 32-bit ids: PyG's fastest form."""
    ones = torch.ones(len(edges))
    index = torch.from_numpy(edges.target).long(), torch.from_numpy(edges.source).long()
    both = torch.sparse_coo_tensor(torch.stack(index), ones, (edges.vertices, edges.vertices), check_invariants=True)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
        made = both.coalesce().to_sparse_csr()
        return torch.sparse_csr_tensor(
            made.crow_indices().int(), made.col_indices().int(), made.values(), made.shape, check_invariants=True
        )
