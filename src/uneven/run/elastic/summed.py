"""A bucket of gradients, and the memory in which their sum is made and stays: it is not copied.

DDP makes a parameter's ``.grad`` a view of its bucket. There it would have to be given the sum, and what this worker
has brought lies there until the sum is complete. So ``.grad`` becomes a view of the sum's memory instead, of the same
layout. DDP takes that for a gradient that somebody else has put there: in the next pass it copies what is added to it
into the bucket, and makes ``.grad`` a view of that again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from uneven.run.elastic.contribution import Contribution


@dataclass(slots=True)
class SummedBucket:
    """See the module.

    Attributes:
        bucket: DDP's memory, shape (numbers,).
        gradients: parameter → its gradient, a view of the bucket.
        sums: memory for the sum, shape (numbers,).
    """

    bucket: Tensor
    gradients: Sequence[tuple[nn.Parameter, Tensor]]
    sums: Tensor
    _views: list[Tensor] = field(default_factory=list)  # of ``sums``, in the order of ``gradients``

    @classmethod
    def of(cls, bucket: Any) -> SummedBucket:
        """That of a bucket which DDP's hook is called with."""
        whole: Tensor = bucket.buffer()
        gradients = list(zip(bucket.parameters(), bucket.gradients(), strict=True))
        return cls(whole, gradients, torch.empty_like(whole))

    def complete(self, piece: Contribution) -> None:
        """All members have the sum, each in memory of its own."""
        if piece.sent is not self.sums:  # made anew after a loss: what had failed may still be written into the old one
            self.sums, self._views = piece.sent, []

    def show(self) -> None:
        """The sum becomes the parameters' gradients, where they have any."""
        if not self._views:
            first = self.bucket.storage_offset()
            self._views = [
                self.sums.as_strided(one.shape, one.stride(), one.storage_offset() - first)
                for _, one in self.gradients
            ]
        for (parameter, _), view in zip(self.gradients, self._views, strict=True):
            if parameter.grad is not None:
                parameter.grad = view
