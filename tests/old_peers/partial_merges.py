"""The state of merges if pieces of the parameters are exchanged in turn: full-length vectors, and numbers by piece."""

from __future__ import annotations

import torch
from torch import Tensor

from uneven.policy.core.actions import Merge, span
from uneven.policy.merge import Kept


def begin(merge: Merge, start: Tensor, pieces: int) -> Kept:
    """Return the state before the first exchange of any piece; ``start`` has shape (size,)."""
    cuts = [span((number, pieces), len(start)) for number in range(pieces)]
    found = [merge.begin(start[cut].clone()) for cut in cuts]
    kept: Kept = {
        key: torch.cat([one[key] for one in found]) for key, value in found[0].items() if isinstance(value, Tensor)
    }
    for number, one in enumerate(found):
        kept |= {_named(key, number): value for key, value in one.items() if not isinstance(value, Tensor)}
    return kept


def of_piece(kept: Kept, piece: tuple[int, int], size: int) -> Kept:
    """Return a copy of the state of one piece of a vector of length ``size``, in the merge's own names."""
    cut, end = span(piece, size), _named("", piece[0])
    found: Kept = {key: value[cut].clone() for key, value in kept.items() if isinstance(value, Tensor)}
    for key, value in kept.items():
        if not isinstance(value, Tensor) and key.endswith(end):
            found[key.removesuffix(end)] = value
    return found


def put(kept: Kept, piece: tuple[int, int], size: int, found: Kept) -> None:
    """Store the new state of a piece."""
    cut = span(piece, size)
    for key, value in found.items():
        if isinstance(value, Tensor):
            kept[key][cut].copy_(value)
        else:
            kept[_named(key, piece[0])] = value


def _named(key: str, number: int) -> str:
    return f"{key} of piece {number}"
