"""The compiled loops, where they were built; everything else is slower, and the same."""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import warnings
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from uneven.graph.edge_list import EdgeList, Ids, Wholes
from uneven.graph.rows import RowIndex
from uneven.graph.workspaces import WORKSPACES

LIBRARY = Path(__file__).with_name("_native.so")
SOURCE = Path(__file__).with_name("native.cpp")
_WIDE = 64
"""Columns from which on a factor is looked up for each edge; below, one pass over the sources is sooner done."""
_PACKED = 128
"""Columns that are copied at one time, in slices of 32, as kPacked and kSlice of native.cpp."""
_SLICE_BYTES = 4 * 32
_OWN_BYTES = 4 << 20
_NEAR_BYTES = 16 << 20
_USED_OFTEN = 3000
_OPENMP = re.compile(r"\s(/\S*lib(?:gomp|iomp5|omp)[^/\s]*\.so[^\s]*)")


@cache
def library(path: Path = LIBRARY) -> ctypes.CDLL | None:
    """The compiled file; None where there is none, or it does not load here, or UNEVEN_NATIVE is 0.

    A file that was compiled from another source is left out with a warning: its functions may take other arguments.
    """
    if os.environ.get("UNEVEN_NATIVE") == "0" or not path.exists():
        return None
    try:
        _share_threads()
        found = ctypes.CDLL(str(path))
    except OSError:
        return None  # built for another machine, or no OpenMP to share: the rest of uneven goes on without
    if _compiled_from(found) != hashlib.sha256(SOURCE.read_bytes()).hexdigest():
        warnings.warn(
            f"{path} was compiled from another {SOURCE.name}, so graphs go on without it, slower: install uneven "
            "again, as in pip install --editable .",
            stacklevel=2,
        )
        return None
    return found


def _compiled_from(found: ctypes.CDLL) -> str:
    """The digest of a compiled file's source; empty for a file from before there was one."""
    if not hasattr(found, "uneven_source"):
        return ""
    found.uneven_source.restype = ctypes.c_char_p
    return str(found.uneven_source().decode())


def _share_threads() -> None:
    """Let the file find the OpenMP library that torch has loaded: one pool, ``torch.set_num_threads`` counts."""
    maps = Path("/proc/self/maps")
    for found in dict.fromkeys(_OPENMP.findall(maps.read_text()) if maps.exists() else ()):
        ctypes.CDLL(found, ctypes.RTLD_GLOBAL)


@cache
def level() -> int:
    """Which vectors the kernel uses: 2 for AVX-512, 1 for AVX2, 0 if the sums are made by torch."""
    found = library()
    return 0 if found is None else int(found.uneven_level())


def sums(
    rows: RowIndex, x: Tensor, scale: Tensor | None = None, weight: Tensor | None = None, at: int | None = None
) -> Tensor | None:
    """scale · Σ of weight · x over the rows of ``x`` that each row names; None where it has to be made elsewhere.

    Args:
        x: float32 [width, d], contiguous.
        scale: [rows]; 1 by default.
        weight: [width]; 1 by default.
        at: a lower level than this machine's.
    """
    found = library()
    height = level() if at is None else min(at, level())
    if found is None or not height or x.dtype is not torch.float32 or not x.numel() or not x.is_contiguous():
        return None
    if any(one is not None and one.shape != (n,) for one, n in ((scale, rows.rows), (weight, len(x)))):
        return None  # torch says so
    scale, weight = (None if one is None else one.to("cpu", torch.float32).contiguous() for one in (scale, weight))
    room = WORKSPACES.tensor(len(x), _PACKED) if packs(rows, len(x), x.shape[1]) else None
    if weight is not None and room is None and x.shape[1] < _WIDE:
        x, weight = x * weight[:, None], None
    out = WORKSPACES.tensor(rows.rows, x.shape[1])
    found.uneven_sums(
        height, _at(rows.starts), _at(rows.columns), _at(rows.chunks), _at(x), _wide(len(x)), _at(out),
        _wide(x.shape[1]), *(None if one is None else _at(one) for one in (scale, weight, room)),
    )  # fmt: skip
    return out


def packs(rows: RowIndex, sources: int, width: int) -> bool:
    """Whether ``x`` is copied first: a core's cache does not keep it, a slice may stay, and each row is used often.

    As measured on graphs of 14 to 86 edges a vertex, where a core has 2 MB: copying a row costs what is saved when
    3,000 of its numbers are gathered.
    """
    stays = sources * _SLICE_BYTES <= _NEAR_BYTES and 4 * sources * width > _OWN_BYTES
    return stays and len(rows.columns) * width > _USED_OFTEN * sources


def expanded(
    edges: EdgeList, shares: Sequence[float], first: Wholes, beta: float
) -> tuple[Wholes, Wholes, Wholes] | None:
    """See :func:`uneven.graph.cut.expand.expand`; None without the compiled file."""
    found = library()
    if found is None:
        return None
    each, first = np.asarray(shares, np.float64), np.ascontiguousarray(first, np.int64)
    placed, ends, rank = (np.empty(n, np.int64) for n in (len(edges), len(each) + 1, edges.vertices))
    found.uneven_expand(
        *_graph(edges), len(each), _of(each), _of(first), ctypes.c_double(beta), _of(placed), _of(ends), _of(rank)
    )
    return placed, ends, rank


def greedy(kind: int, edges: EdgeList, shares: Sequence[float], order: Ids) -> Ids | None:
    """Libra for 0, HDRF for 1; see :mod:`uneven.graph.cut.greedy`. None without the compiled file."""
    found = library()
    if found is None:
        return None
    each, order = np.asarray(shares, np.float64), np.ascontiguousarray(order, np.int32)
    part = np.empty(len(edges), np.int32)
    found.uneven_greedy(kind, *_graph(edges), len(each), _of(each), _of(order), _of(part))
    return part


def _graph(edges: EdgeList) -> tuple[Any, ...]:
    return _wide(len(edges)), _wide(edges.vertices), _of(edges.source), _of(edges.target)


def _at(tensor: Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


def _of(array: npt.NDArray[np.generic]) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def _wide(number: int) -> ctypes.c_int64:
    return ctypes.c_int64(number)
