"""Reusable memory for sums.

The system maps large buffers page by page, and unmaps them immediately: for sums above 32 MB that takes longer than the
sums. A buffer becomes free with the last reference to its tensor, views and autograd's included.
"""

from __future__ import annotations

import weakref

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Buffer = npt.NDArray[np.float32]

LEAST = 1 << 18
"""The minimum size in numbers; malloc itself keeps the memory of smaller tensors."""


class Workspaces:
    """The free buffers by size. It keeps as many as were in use at the same time."""

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
