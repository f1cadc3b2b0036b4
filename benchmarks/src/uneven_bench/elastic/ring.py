"""The order in which gloo adds, so that a replay in one process gives the same bits.

gloo's all-reduce (``gloo/allreduce.cc``, ``ring``) cuts a tensor into segments, the same number for each place. Those
of place g begin at place g − 1, which sends them to g − 2; each place adds its own numbers to the received ones, and g
has the sum. So the order differs from one part of a tensor to the next.
"""

from collections.abc import Sequence

import torch

_LONGEST = 1 << 20  # bytes of a segment, at most


def ring_sum(those: Sequence[torch.Tensor], before: int = 0, behind: int = 0) -> torch.Tensor:
    """Return the sum of tensors of shape (numbers,), one for each place in order, as gloo adds them. ``before,
    behind``: numbers in the same exchange, before these and behind them."""
    first = those[0]
    count, size, item = len(those), first.numel(), first.element_size()
    whole = (before + size + behind) * item
    segments = _up(max(-(-whole // _LONGEST), 2 * count), count)
    stretch = segments // count * _up(-(-whole // segments), item) // item
    total = torch.empty_like(first)
    for place in range(count):
        begin, end = (min(max(one * stretch - before, 0), size) for one in (place, place + 1))
        found = those[place - 1][begin:end]
        for step in range(2, count + 1):
            found = those[(place - step) % count][begin:end] + found
        total[begin:end] = found
    return total


def _up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
