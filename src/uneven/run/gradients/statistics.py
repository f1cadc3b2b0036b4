"""Keeps batch-norm statistics equal on all ranks: their mean, weighted by samples.

DDP broadcasts rank 0's before every forward pass; with unequal batches rank 0 may be the one that saw least.
The running statistics are linear in the batch's, so the weighted mean of the running ones is the running mean
of the weighted ones. It travels beside the gradients and hides under the backward pass like them.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from uneven.run.lines.groups import begin_sum
from uneven.run.lines.traffic import bytes_of_sum


class BatchStatistics:
    """The running statistics of a model's batch-norm layers.

    Layers in evaluation mode are left alone (theirs do not move, and a mean would only add rounding), and so
    are synchronised ones (theirs are equal already).
    """

    def __init__(self, layers: list[_BatchNorm], group: Any = None) -> None:
        self._layers = layers
        self._group = group
        self._work: dist.Work | None = None
        self._flat: torch.Tensor | None = None
        self._moving: list[torch.Tensor] = []

    @classmethod
    def of(cls, model: nn.Module, group: Any = None) -> BatchStatistics | None:
        """Those of ``model``, or None if it has no such layer; averaged over a process group, or everybody."""
        layers = [
            layer
            for layer in model.modules()
            if isinstance(layer, _BatchNorm)
            and not isinstance(layer, nn.SyncBatchNorm)
            and layer.running_mean is not None
        ]
        return cls(layers, group) if layers else None

    def start(self, weight: float) -> int:
        """Start the exchange; every rank calls it after the same forward pass.

        Returns:
            Bytes that this worker sends for it.
        """
        if self._work is not None:  # several forward passes before one backward pass
            self.finish()
        self._flat = self.flat()
        if self._flat is None:
            return 0
        self._work = begin_sum(self._flat.mul_(weight), self._group)
        return bytes_of_sum(self._flat.nbytes, self._group.size())

    def finish(self) -> None:
        """Wait for the exchange and write the mean back."""
        if self._work is None or self._flat is None:
            return
        self._work.wait()
        self.put(self._flat)
        self._work = self._flat = None

    def flat(self) -> torch.Tensor | None:
        """This worker's statistics of the layers that are in training, one after the other: float64, shape (numbers,);
        None where no layer is."""
        self._moving = [
            tensor
            for layer in self._layers
            if layer.training
            for tensor in (layer.running_mean, layer.running_var)
            if tensor is not None
        ]
        return torch.cat([tensor.reshape(-1).double() for tensor in self._moving]) if self._moving else None

    def put(self, flat: torch.Tensor) -> None:
        """Write them back into the layers that :meth:`flat` took them from."""
        pieces = flat.split([tensor.numel() for tensor in self._moving])
        for tensor, piece in zip(self._moving, pieces, strict=True):
            tensor.copy_(piece.view_as(tensor))
