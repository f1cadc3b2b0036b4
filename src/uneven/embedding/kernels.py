"""Fast lookups and updates: torch's ``embedding_bag``, or numba loops. Tests compare them with
``row_optimizers.py``."""

from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from uneven.embedding.pure.config import RowOptimizer, RowwiseAdagrad
from uneven.embedding.pure.narrow_rows import MOST_FLOAT16, SCALE_BYTES, narrow
from uneven.embedding.pure.row_optimizers import Bags, Floats, Ids, Kernels
from uneven.policy.core.exact import Bits


class TorchKernels:
    def lookup(self, rows: Floats, bags: Bags) -> Floats:
        """Return the sum of each bag's rows, shape (bags, dim), with one call for all features."""
        table, ids = _shared(rows), _shared(bags.ids)
        weights = None if bags.weights is None else _shared(bags.weights)
        if bags.lengths is None and bags.each == 1 and weights is None:
            return table.index_select(0, ids).numpy()
        offsets = np.zeros(bags.count, np.int32)
        np.cumsum(bags.sizes[:-1], out=offsets[1:])
        return F.embedding_bag(ids, table, _shared(offsets), mode="sum", per_sample_weights=weights).numpy()

    def update(self, rows: Floats, sums: Floats, bags: Bags, given: Floats, optimizer: RowOptimizer) -> None:
        """Step on the rows (n, dim) in place; ``given`` (bags, dim) are the gradients, ``sums`` (n,) Adagrad's."""
        # a row of several bags must step once, with the sum of its gradients
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

    def distinct(self, ids: Any) -> tuple[Ids, Ids]:
        found, index = np.unique(ids, return_inverse=True)
        return found, index.astype(np.int32)

    def narrowed(self, values: Floats, dtype: str, keys: Bits | None = None) -> npt.NDArray[Any]:
        """Return rows (n, dim) as ``dtype``, bfloat16 as its bits; at random by ``keys`` (n,), or to the nearest."""
        found = _shared(values)
        if dtype == "float32":
            return values
        if dtype == "bfloat16":
            return found.bfloat16().view(torch.uint16).numpy()
        return narrow(values, dtype, keys)

    def whole(self, values: npt.NDArray[Any]) -> Floats:
        """Return a result of :meth:`narrowed` as float32 (n, dim)."""
        if values.dtype == np.float32:
            return values
        found = _shared(values)
        if values.dtype == np.int8:
            scales = torch.from_numpy(values[:, -SCALE_BYTES:].copy().view(np.float32))  # a single row may be unaligned
            return found[:, :-SCALE_BYTES].float().mul_(scales).numpy()
        return (found.view(torch.bfloat16) if values.dtype == np.uint16 else found).float().numpy()


class NumbaKernels(TorchKernels):
    """Compiled loops that prefetch rows, and find equal rows by hashing instead of sorting."""

    def __init__(self) -> None:
        from uneven.embedding import loops  # compiles on import, so only where numba is used

        self._loops = loops

    def lookup(self, rows: Floats, bags: Bags) -> Floats:
        found: Floats
        if bags.each == 1 and bags.weights is None:
            found = self._loops.taken(rows, bags.ids)
        else:
            found = self._loops.pooled(rows, bags.ids, bags.count, *_shape(bags))
        return found

    def update(self, rows: Floats, sums: Floats, bags: Bags, given: Floats, optimizer: RowOptimizer) -> None:
        eps = optimizer.eps if isinstance(optimizer, RowwiseAdagrad) else -1.0
        self._loops.step(rows, sums, *self.distinct(bags.ids), *_shape(bags), given, optimizer.lr, eps)

    def distinct(self, ids: Any) -> tuple[Ids, Ids]:
        found: tuple[Ids, Ids] = self._loops.numbered(ids)
        return found

    def narrowed(self, values: Floats, dtype: str, keys: Bits | None = None) -> npt.NDArray[Any]:
        given = _NO_KEYS if keys is None else keys
        if dtype == "float16" and keys is not None:
            found = torch.from_numpy(self._loops.rounded(values, values.view(np.int32), _UNITS, given))
            return found.clamp_(-MOST_FLOAT16, MOST_FLOAT16).half().numpy()
        if dtype == "int8":
            out, scales = self._loops.to_int8(values, given, SCALE_BYTES)
            out[:, -SCALE_BYTES:] = scales.view(np.int8)
            return out
        return super().narrowed(values, dtype, keys)


_NO_LENGTHS, _NO_WEIGHTS, _NO_KEYS = np.empty(0, np.int32), np.empty(0, np.float32), np.empty(0, np.uint64)
_UNITS = np.ldexp(np.float32(1), np.maximum(np.arange(256) - 137, -24))
"""Exponent of a float32 → the distance of two float16 there."""


def _shape(bags: Bags) -> tuple[int, Ids, Floats]:
    """Return ids per bag, lengths and weights; empty arrays for None, because a numba signature has one type each."""
    lengths = _NO_LENGTHS if bags.lengths is None else bags.lengths
    return bags.each, lengths, _NO_WEIGHTS if bags.weights is None else bags.weights


def kernels() -> Kernels:
    return TorchKernels() if find_spec("numba") is None else NumbaKernels()


def _shared(values: Any) -> Tensor:
    """Return a tensor on the same memory; a copy if numpy marks it read-only, as it does for received messages."""
    return torch.from_numpy(values if values.flags.writeable else values.copy())
