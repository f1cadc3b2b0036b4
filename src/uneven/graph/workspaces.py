"""Memory of sums, used again once nobody refers to it any more.

The system hands out large buffers page by page, and takes them back at once: for sums of more than 32 MB that takes
longer than the sums. A buffer that is kept here belongs to its tensor, to views of that, and to whatever autograd keeps
of it, and comes back when the last of these is gone; so nothing can be overwritten that is still read.
"""

from __future__ import annotations

import weakref

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Buffer = npt.NDArray[np.float32]

LEAST = 1 << 18
"""Numbers; smaller tensors are malloc's own, which keeps their memory anyway."""


class Workspaces:
    """Free buffers by their size. As many are kept as were in use at one time."""

    def __init__(self) -> None:
        self.free: dict[int, list[Buffer]] = {}

    def tensor(self, rows: int, width: int) -> Tensor:
        """float32 [rows, width], not filled."""
        size = rows * width
        if size < LEAST:
            return torch.empty(rows, width, dtype=torch.float32, device="cpu")
        free = self.free.setdefault(size, [])
        if free:
            buffer = free.pop()
        else:  # on a line of the cache, as numpy's are not
            buffer = torch.empty(size, dtype=torch.float32, device="cpu").numpy()
        lent = buffer.view()  # dies with the last tensor on it
        weakref.finalize(lent, free.append, buffer).atexit = False
        return torch.from_numpy(lent).view(rows, width)


WORKSPACES = Workspaces()
