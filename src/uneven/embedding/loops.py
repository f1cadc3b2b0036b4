"""Loops over a shard's rows, compiled by numba if it is installed.

The rows of a batch are scattered over gigabytes, so memory latency dominates. Each loop prefetches some rows ahead, so
that the processor has many reads in flight.
"""

from collections.abc import Callable
from typing import Any, cast

import numba
import numpy as np
from llvmlite import ir
from numba import float32, float64, int8, int32, int64, types, uint64
from numba.core import cgutils
from numba.extending import intrinsic

from uneven.embedding.pure.row_optimizers import CACHE_LINE

_AHEAD = 16  # prefetch distance in rows
_LANES = 8  # an inner loop of constant length compiles to one vector instruction
_LINE = CACHE_LINE // 4  # float32 per cache line


def _read(kind: Any, ndim: int) -> Any:
    return types.Array(kind, ndim, "C", readonly=True)  # received arrays are read-only, a separate numba type


_IDS, _LENGTHS, _WEIGHTS, _GIVEN = _read(int32, 1), _read(int32, 1), _read(float32, 1), _read(float32, 2)
_ROWS, _SUMS, _WHOLES = float32[:, ::1], float32[::1], int32[::1]
_KEYS, _BITS = _read(uint64, 1), _read(int32, 2)


def _compiled(signature: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Compile for a shard's types on import, so that the first request does not wait."""

    def compile_(function: Callable[..., Any]) -> Callable[..., Any]:
        try:
            return cast(Callable[..., Any], numba.njit(signature, nogil=True, cache=True)(function))
        except RuntimeError:  # numba finds no writable cache folder
            return cast(Callable[..., Any], numba.njit(signature, nogil=True)(function))

    return compile_


_built_in: Callable[[Callable[..., Any]], Any] = intrinsic


@_built_in
def _prefetch(typing: Any, array: Any, place: Any) -> Any:
    """Prefetch the cache line of entry ``place`` of a 1-D array; it may be past the end."""

    def built(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array_, place_ = arguments
        data = context.make_array(signature.args[0])(context, builder, array_).data
        offset = builder.mul(place_, ir.Constant(place_.type, signature.args[0].dtype.bitwidth // 8))
        pointer = builder.inttoptr(builder.add(builder.ptrtoint(data, place_.type), offset), cgutils.voidptr_t)
        word = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, word, word, word])
        prefetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        builder.call(
            prefetch, [pointer, *(ir.Constant(word, one) for one in (0, 3, 1))]
        )  # read, all cache levels, data
        return context.get_dummy_value()

    return types.void(array, types.int64), built


@_compiled(_ROWS(_GIVEN, _IDS))
def taken(rows: Any, ids: Any) -> Any:
    """Return the row of each id; shape (ids, dim)."""
    dim = rows.shape[1]
    whole = dim // _LANES * _LANES
    flat = rows.reshape(rows.size)
    out = np.empty((len(ids), dim), np.float32)  # allocated here, so that the compiler knows it does not alias rows
    for place in range(len(ids)):
        if place + _AHEAD < len(ids):
            for line in range(0, dim, _LINE):
                _prefetch(flat, np.int64(ids[place + _AHEAD]) * dim + line)
        row = ids[place]
        for lane in range(0, whole, _LANES):
            for k in range(_LANES):
                out[place, lane + k] = rows[row, lane + k]
        for k in range(whole, dim):
            out[place, k] = rows[row, k]
    return out


@_compiled(_ROWS(_GIVEN, _IDS, int64, int64, _LENGTHS, _WEIGHTS))
def pooled(rows: Any, ids: Any, bags: int, each: int, lengths: Any, weights: Any) -> Any:
    """Return the sum of each bag's rows (bags, dim). ``each`` is 0 with ``lengths``; empty ``weights`` mean 1."""
    dim = rows.shape[1]
    whole = dim // _LANES * _LANES
    flat = rows.reshape(rows.size)
    out = np.zeros((bags, dim), np.float32)
    stop = 0
    for bag in range(bags):
        start, stop = stop, stop + (each or lengths[bag])
        for place in range(start, stop):
            if place + _AHEAD < len(ids):
                for line in range(0, dim, _LINE):
                    _prefetch(flat, np.int64(ids[place + _AHEAD]) * dim + line)
            row = ids[place]
            scale = weights[place] if len(weights) else np.float32(1)
            for lane in range(0, whole, _LANES):
                for k in range(_LANES):
                    out[bag, lane + k] += scale * rows[row, lane + k]
            for k in range(whole, dim):
                out[bag, k] += scale * rows[row, k]
    return out


@_compiled(types.UniTuple(_WHOLES, 2)(_IDS))
def numbered(ids: Any) -> Any:
    """Return the distinct ids in order of appearance, and the index of each id among them."""
    # A hash table that fits into a cache; linear probing, Fibonacci hashing (Knuth, TAOCP 3, 6.4).
    bits = 4
    while 1 << bits < 2 * len(ids):
        bits += 1
    known = np.full(1 << bits, -1, np.int32)
    found = np.empty(len(ids), np.int32)
    number_of = np.empty(len(ids), np.int32)
    count = 0
    for place in range(len(ids)):
        row = ids[place]
        slot = np.int64(np.uint32(np.uint32(row) * np.uint32(2654435769)) >> np.uint32(32 - bits))
        while known[slot] >= 0 and found[known[slot]] != row:
            slot = (slot + 1) & ((1 << bits) - 1)
        if known[slot] < 0:
            known[slot] = count
            found[count] = row
            count += 1
        number_of[place] = known[slot]
    return found[:count], number_of


@_compiled(types.void(_ROWS, _SUMS, _WHOLES, _WHOLES, int64, _LENGTHS, _WEIGHTS, _GIVEN, float64, float64))
def step(
    rows: Any,
    sums: Any,
    found: Any,
    number_of: Any,
    each: int,
    lengths: Any,
    weights: Any,
    given: Any,
    lr: float,
    eps: float,
) -> None:
    """Add up the gradients of each row, and step once on each row in place.

    ``found``, ``number_of``: of :func:`numbered`; ``given``: gradients of the bags' sums, shape (bags, dim); ``eps``:
    of row-wise Adagrad, or negative for SGD. The others as in :func:`pooled`.
    """
    dim, count = rows.shape[1], len(found)
    whole = dim // _LANES * _LANES
    total = np.zeros((count, dim), np.float32)
    stop = 0
    for bag in range(len(given)):
        start, stop = stop, stop + (each or lengths[bag])
        for place in range(start, stop):
            at = number_of[place]
            scale = weights[place] if len(weights) else np.float32(1)
            for lane in range(0, whole, _LANES):
                for k in range(_LANES):
                    total[at, lane + k] += scale * given[bag, lane + k]
            for k in range(whole, dim):
                total[at, k] += scale * given[bag, k]
    factors = np.full(count, lr, np.float32)
    if eps >= 0:
        for at in range(count):
            square = np.float32(0)
            for k in range(dim):
                square += total[at, k] * total[at, k]
            factors[at] = square / dim
        for at in range(count):
            if at + _AHEAD < count:
                _prefetch(sums, np.int64(found[at + _AHEAD]))
            sums[found[at]] += factors[at]
            factors[at] = sums[found[at]]
        for at in range(count):
            factors[at] = lr / (np.sqrt(factors[at]) + eps)
    flat = rows.reshape(rows.size)
    for at in range(count):
        if at + _AHEAD < count:
            for line in range(0, dim, _LINE):
                _prefetch(flat, np.int64(found[at + _AHEAD]) * dim + line)
        row = found[at]
        for lane in range(0, whole, _LANES):
            for k in range(_LANES):
                rows[row, lane + k] -= factors[at] * total[at, lane + k]
        for k in range(whole, dim):
            rows[row, k] -= factors[at] * total[at, k]


@_compiled(float32(_KEYS, int64, int64))
def _chance(keys: Any, row: int, k: int) -> Any:
    """Return u of :mod:`uneven.embedding.pure.narrow_rows`, with splitmix64."""
    if not len(keys):
        return np.float32(0.5)
    z = keys[row] + np.uint64(k // 4) + np.uint64(0x3C6EF372FE94F82A)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    bits = ((z ^ (z >> np.uint64(31))) >> np.uint64(16 * (k % 4) + 4)) & np.uint64(0xFFF)
    return (np.float32(bits) + np.float32(0.5)) * np.float32(2.0**-12)


@_compiled(_ROWS(_GIVEN, _BITS, _WEIGHTS, _KEYS))
def rounded(values: Any, bits: Any, units: Any, keys: Any) -> Any:
    """Return rows (n, dim), rounded to float16; ``bits`` are those of ``values``, ``units`` (256,) of each exponent."""
    out = np.empty(values.shape, np.float32)
    for row in range(len(values)):
        for k in range(values.shape[1]):
            unit = units[(bits[row, k] >> 23) & 255]
            out[row, k] = np.floor(values[row, k] / unit + _chance(keys, row, k)) * unit
    return out


@_compiled(types.Tuple((int8[:, ::1], _ROWS))(_GIVEN, _KEYS, int64))
def to_int8(values: Any, keys: Any, room: int) -> Any:
    """Return rows (n, dim) as int8, with ``room`` behind each, and their scales (n, 1)."""
    dim = values.shape[1]
    out, scales = np.empty((len(values), dim + room), np.int8), np.empty((len(values), 1), np.float32)
    for row in range(len(values)):
        most = np.float32(0)
        for k in range(dim):
            most = max(most, abs(values[row, k]))
        scales[row, 0] = most / np.float32(127)
        unit = scales[row, 0] or np.float32(1)
        for k in range(dim):
            number = np.floor(values[row, k] / unit + _chance(keys, row, k))
            out[row, k] = np.int8(min(max(number, np.float32(-127)), np.float32(127)))
    return out, scales
