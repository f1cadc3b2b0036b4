"""Dropout that depends on the vertex, not on the worker that computes it."""

import torch
from torch import Tensor

_MIX, _MIX_2 = 0x2C1B3C6D, 0x297A2D39
_HALF = 0x7FFFFFFF


def same_everywhere(x: Tensor, ids: Tensor, p: float, call: int) -> Tensor:
    """Zero a share ``p`` of the entries of ``x`` (rows, d), and scale the others by 1 / (1 − p).

    ``ids`` (rows,) int64 are the vertices' numbers in the whole graph; each ``call`` has another mask.
    """
    salt = (call * 0x9E3779B1) & _HALF
    row = _mixed(ids.to(torch.int64) * 0x85EBCA6B + salt).to(torch.int32)
    column = _mixed(torch.arange(x.shape[1]) * 0xC2B2AE35 + salt + 1).to(torch.int32)
    # Two 1-D hashes and a short mix of their xor: much cheaper than 64-bit hashing of every entry.
    mask = row[:, None] ^ column
    mask = (mask ^ (mask >> 15)) * _MIX
    mask = (mask ^ (mask >> 12)) * _MIX_2
    mask = (mask ^ (mask >> 15)) & _HALF
    return x * (mask >= int(p * 2**31)).to(x.dtype).mul_(1.0 / (1.0 - p) if p < 1.0 else 0.0)


def _mixed(key: Tensor) -> Tensor:
    key = key ^ (key >> 33)
    key = key * 0x62A9D9ED799705F5
    key = key ^ (key >> 28)
    key = key * 0x4B24D0A5C8E1B4F1
    return (key ^ (key >> 32)) & _HALF
