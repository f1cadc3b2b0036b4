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
        parameters: whose gradients lie there.
        sums: memory for the sum, shape (numbers,).
    """

    bucket: Tensor
    parameters: Sequence[nn.Parameter]
    sums: Tensor
    _views: dict[nn.Parameter, Tensor] = field(default_factory=dict)  # of ``sums``

    @classmethod
    def of(cls, bucket: Any) -> SummedBucket:
        """That of a bucket which DDP's hook is called with."""
        whole: Tensor = bucket.buffer()
        return cls(whole, bucket.parameters(), torch.empty_like(whole))

    def complete(self, piece: Contribution) -> None:
        """All members have the sum, each in memory of its own."""
        if piece.sent is not self.sums:  # made anew after a loss: what had failed may still be written into the old one
            self.sums, self._views = piece.sent, {}

    def show(self) -> None:
        """The sum becomes the parameters' gradients, where they have any; in the backward pass DDP has put these into
        its bucket."""
        for parameter in self.parameters:
            if parameter.grad is not None:
                view = self._views.get(parameter)
                parameter.grad = self._view(parameter, parameter.grad) if view is None else view

    def _view(self, parameter: nn.Parameter, gradient: Tensor) -> Tensor:
        """In the layout of the gradient, which is its parameter's, and not that of ``bucket.gradients()``."""
        assert gradient.untyped_storage().data_ptr() == self.bucket.untyped_storage().data_ptr(), "DDP put it there"
        at = gradient.storage_offset() - self.bucket.storage_offset()
        view = self._views[parameter] = self.sums.as_strided(gradient.shape, gradient.stride(), at)
        return view
