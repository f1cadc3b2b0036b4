"""Bindings of the compiled loops, which are optional: without them, results are the same, only slower."""

import ctypes
import hashlib
import os
import re
import weakref
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from uneven.graph.adjacency import RowIndex
from uneven.graph.pure.edge_list import EdgeList, Ids, Wholes
from uneven.runtime.frames import warn

Buffer = npt.NDArray[np.float32]

LEAST = 1 << 18
"""The minimum size in numbers; malloc itself keeps the memory of smaller tensors."""


class Workspaces:
    """The free buffers by size, reused for sums. It keeps as many as were in use at the same time.

    The system maps large buffers page by page, and unmaps them immediately: for sums above 32 MB that takes longer than
    the sums. A buffer becomes free with the last reference to its tensor, views and autograd's included.
    """

    def __init__(self) -> None:
        self.free: dict[int, list[Buffer]] = {}

    def tensor(self, rows: int, width: int) -> Tensor:
        """Return an uninitialized float32 tensor (rows, width)."""
        size = rows * width
        if size < LEAST:
            return torch.empty(rows, width, dtype=torch.float32, device="cpu")
        free = self.free.setdefault(size, [])
        if free:
            buffer = free.pop()
        else:  # torch aligns to a cache line, numpy does not
            buffer = torch.empty(size, dtype=torch.float32, device="cpu").numpy()
        lent = buffer.view()  # a separate view, deleted with the last tensor on it
        weakref.finalize(lent, free.append, buffer).atexit = False
        return torch.from_numpy(lent).view(rows, width)


WORKSPACES = Workspaces()


LIBRARY = Path(__file__).with_name("_native.so")
SOURCE = Path(__file__).with_name("native.cpp")
_WIDE = 64
"""Minimum columns for looking up a factor per edge; below, scaling the sources first is faster."""
_PACKED = 128
"""Columns copied together, in slices of 32; must equal kPacked and kSlice of native.cpp."""
_SLICE_BYTES = 4 * 32
_OWN_BYTES = 4 << 20
_NEAR_BYTES = 16 << 20
_USED_OFTEN = 3000
_OPENMP = re.compile(r"\s(/\S*lib(?:gomp|iomp5|omp)[^/\s]*\.so[^\s]*)")


@cache
def library(path: Path = LIBRARY) -> ctypes.CDLL | None:
    """Return the compiled library; None if it is missing, outdated or does not load, or if UNEVEN_NATIVE is 0."""
    if os.environ.get("UNEVEN_NATIVE") == "0" or not path.exists():
        return None
    try:
        _share_threads()
        found = ctypes.CDLL(str(path))
    except OSError:
        return None  # built for another machine, or there is no OpenMP library
    # its functions may take other arguments
    if _compiled_from(found) != hashlib.sha256(SOURCE.read_bytes()).hexdigest():
        warn(
            f"uneven: {path} was compiled from another {SOURCE.name}, so slower Python code is used: install uneven "
            "again, as in pip install --editable ."
        )
        return None
    return found


def _compiled_from(found: ctypes.CDLL) -> str:
    if not hasattr(found, "uneven_source"):
        return ""
    found.uneven_source.restype = ctypes.c_char_p
    return str(found.uneven_source().decode())


def _share_threads() -> None:
    """Make the library use the OpenMP that torch has loaded: one thread pool, set by ``torch.set_num_threads``."""
    maps = Path("/proc/self/maps")
    for found in dict.fromkeys(_OPENMP.findall(maps.read_text()) if maps.exists() else ()):
        ctypes.CDLL(found, ctypes.RTLD_GLOBAL)


@cache
def level() -> int:
    """Return the kernel's vector level: 2 for AVX-512, 1 for AVX2, 0 if torch computes the sums."""
    found = library()
    return 0 if found is None else int(found.uneven_level())


def sums(
    rows: RowIndex, x: Tensor, scale: Tensor | None = None, weight: Tensor | None = None, at: int | None = None
) -> Tensor | None:
    """Return scale · Σ of weight · x over the rows of ``x`` that each row names, (rows, d); None if unsupported.

    ``x`` is contiguous float32 (width, d), ``scale`` (rows,), ``weight`` (width,); ``at`` limits the vector level.
    """
    found = library()
    height = level() if at is None else min(at, level())
    if found is None or not height or x.dtype is not torch.float32 or not x.numel() or not x.is_contiguous():
        return None
    if any(one is not None and one.shape != (n,) for one, n in ((scale, rows.rows), (weight, len(x)))):
        return None  # torch raises the error
    scale, weight = (None if one is None else one.to("cpu", torch.float32).contiguous() for one in (scale, weight))
    room = WORKSPACES.tensor(len(x), _PACKED) if packs(rows, len(x), x.shape[1]) else None
    if weight is not None and room is None and x.shape[1] < _WIDE:
        x, weight = x * weight[:, None], None
    out = WORKSPACES.tensor(rows.rows, x.shape[1])
    found.uneven_sums(
        height,
        _at(rows.starts),
        _at(rows.columns),
        _at(rows.chunks),
        _at(x),
        _wide(len(x)),
        _at(out),
        _wide(x.shape[1]),
        *(None if one is None else _at(one) for one in (scale, weight, room)),
    )
    return out


def packs(rows: RowIndex, sources: int, width: int) -> bool:
    """Return whether to copy ``x`` first: it exceeds a core's cache, a slice may fit, and each row is used often."""
    # Copying a row costs as much as gathering 3,000 of its numbers saves, measured with 14 to 86 edges per vertex and 2
    # MB of cache per core.
    stays = sources * _SLICE_BYTES <= _NEAR_BYTES and 4 * sources * width > _OWN_BYTES
    return stays and len(rows.columns) * width > _USED_OFTEN * sources


def expanded(
    edges: EdgeList, shares: Sequence[float], first: Wholes, beta: float
) -> tuple[Wholes, Wholes, Wholes] | None:
    """Run :func:`uneven.graph.pure.cut.expand.expand` compiled; None without the library."""
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
    """Run Libra (0) or HDRF (1) of :mod:`uneven.graph.pure.cut.greedy` compiled; None without the library."""
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
