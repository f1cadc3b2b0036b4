"""Lookups and updates as fast as this machine has them: torch's ``embedding_bag``, and numba's loops if installed.

Both compute what :mod:`uneven.embedding.rows` says, which the tests hold against them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from uneven.embedding.config import RowOptimizer, RowwiseAdagrad
from uneven.embedding.rows import Bags, Floats, Halves, Ids, Kernels


class TorchKernels:
    """With torch alone; see :class:`Kernels`."""

    def lookup(self, rows: Floats, bags: Bags) -> Floats:
        """One flat table, one call for all features."""
        table, ids = _shared(rows), _shared(bags.ids)
        weights = None if bags.weights is None else _shared(bags.weights)
        if bags.lengths is None and bags.each == 1 and weights is None:
            return table.index_select(0, ids).numpy()
        offsets = np.zeros(bags.count, np.int32)
        np.cumsum(bags.sizes[:-1], out=offsets[1:])
        return F.embedding_bag(ids, table, _shared(offsets), mode="sum", per_sample_weights=weights).numpy()

    def update(self, rows: Floats, sums: Floats, bags: Bags, given: Floats, optimizer: RowOptimizer) -> None:
        """Equal rows are found by sorting."""
        found, inverse = torch.unique(_shared(bags.ids), return_inverse=True)
        values = _shared(given)
        if bags.lengths is not None or bags.each != 1:
            values = values.repeat_interleave(_shared(bags.sizes), 0)
        if bags.weights is not None:
            values = values * _shared(bags.weights).unsqueeze(1)
        total = torch.zeros(len(found), rows.shape[1]).index_add_(0, inverse, values)
        if isinstance(optimizer, RowwiseAdagrad):
            held = _shared(sums)
            held.index_add_(0, found, total.square().mean(1))
            total.div_(held.index_select(0, found).sqrt_().add_(optimizer.eps).unsqueeze(1))
        _shared(rows).index_add_(0, found, total, alpha=-optimizer.lr)

    def halved(self, values: Floats) -> Halves:
        """See :class:`Kernels`."""
        return torch.from_numpy(values).bfloat16().view(torch.uint16).numpy()

    def whole(self, values: Halves) -> Floats:
        """See :class:`Kernels`."""
        return _shared(values).view(torch.bfloat16).float().numpy()


class NumbaKernels(TorchKernels):
    """Lookups with torch, updates in compiled loops, which find equal rows without sorting."""

    def __init__(self) -> None:
        self._step = _compiled()
        self._marks: dict[int, Ids] = {}  # of each array of rows; all −1 between two updates

    def update(self, rows: Floats, sums: Floats, bags: Bags, given: Floats, optimizer: RowOptimizer) -> None:
        """See :class:`Kernels`."""
        marks = self._marks.get(id(rows))
        if marks is None or len(marks) != len(rows):
            marks = self._marks[id(rows)] = np.full(len(rows), -1, np.int32)
        ends = np.zeros(bags.count + 1, np.int32)
        np.cumsum(bags.sizes, out=ends[1:])
        eps = optimizer.eps if isinstance(optimizer, RowwiseAdagrad) else -1.0
        weights = np.empty(0, np.float32) if bags.weights is None else bags.weights
        self._step(rows, sums, bags.ids, ends, weights, given, optimizer.lr, eps, marks)


def kernels() -> Kernels:
    """The best that this machine has."""
    return TorchKernels() if find_spec("numba") is None else NumbaKernels()


def _shared(values: Any) -> Tensor:
    """The same memory; of what came in a message, which numpy takes for read-only, a copy."""
    return torch.from_numpy(values if values.flags.writeable else values.copy())


@cache
def _compiled() -> Callable[..., None]:
    """The update, compiled for what a shard gives it, before anybody waits for it."""
    import numba
    from numba import float32, float64, int32, types

    def read(kind: Any, ndim: int) -> Any:  # what came in a message is read-only, which is another type for numba
        return types.Array(kind, ndim, "C", readonly=True)

    ids, weights, given = read(int32, 1), read(float32, 1), read(float32, 2)
    rows, sums, wholes = float32[:, ::1], float32[::1], int32[::1]
    signature = types.void(rows, sums, ids, wholes, weights, given, float64, float64, wholes)
    try:
        return cast(Callable[..., None], numba.njit(signature, nogil=True, cache=True)(_update))
    except RuntimeError:  # there is no folder that it could keep what it compiles in
        return cast(Callable[..., None], numba.njit(signature, nogil=True)(_update))


def _update(
    rows: Any, sums: Any, ids: Any, ends: Any, weights: Any, given: Any, lr: float, eps: float, marks: Any
) -> None:
    """The rows of a batch are numbered as they come, their gradients added up, and each steps once."""
    dim = rows.shape[1]
    found = np.empty(len(ids), np.int32)
    total = np.zeros((len(ids), dim), np.float32)
    count = 0
    for bag in range(len(ends) - 1):
        for place in range(ends[bag], ends[bag + 1]):
            row = ids[place]
            at = marks[row]
            if at < 0:
                at = marks[row] = count
                found[count] = row
                count += 1
            scale = weights[place] if len(weights) else np.float32(1)
            for k in range(dim):
                total[at, k] += scale * given[bag, k]
    for at in range(count):
        row = found[at]
        marks[row] = -1
        factor = np.float32(lr)
        if eps >= 0:
            square = np.float32(0)
            for k in range(dim):
                square += total[at, k] * total[at, k]
            sums[row] += square / dim
            factor = np.float32(lr / (np.sqrt(sums[row]) + eps))
        for k in range(dim):
            rows[row, k] -= factor * total[at, k]
