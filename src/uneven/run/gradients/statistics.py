"""Keeps batch-norm statistics equal on all ranks: their mean, weighted by samples.

DDP broadcasts rank 0's before every forward pass; with unequal batches rank 0 may be the one that saw least.
The running statistics are linear in the batch's, so the weighted mean of the running ones is the running mean
of the weighted ones. It travels beside the gradients and hides under the backward pass like them.

Other buffers that forward passes write (running normalizers, codebooks) are averaged likewise. They are those that
differ between ranks after the first pass; all ranks find that out together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from uneven.errors import TrainingError
from uneven.run.gradients.replicas import differing, digests
from uneven.run.lines.groups import begin_sum, sum_now
from uneven.run.lines.traffic import bytes_of_sum

_SAME = 1e-6
"""Part of its length by which a buffer may differ between ranks and still is one that no pass has written. The
compared sums have 16 digits, and squares of them are subtracted."""

_BY_WORKER = (
    "forward passes write buffer {name}, and its shape {shape} depends on the worker or the batch, so workers cannot "
    "agree on it: name it in model._ddp_params_and_buffers_to_ignore before session.setup if each worker is to keep "
    "its own, or register it with persistent=False"
)


class BatchStatistics:
    """The running statistics of a model's batch-norm layers, and other buffers that forward passes write.

    Layers in evaluation mode are left alone (theirs do not move, and a mean would only add rounding), and so
    are synchronised ones (theirs are equal already).

    Args:
        group: whose ranks average; None where others carry the result of :meth:`flat`, which is batch norm's alone.

    Attributes:
        warn: called with a text if other buffers than batch norm's are averaged.
    """

    def __init__(self, model: nn.Module, group: Any = None) -> None:
        self._device = next(model.parameters()).device
        norms = [layer for layer in model.modules() if isinstance(layer, _BatchNorm)]
        self._layers = [one for one in norms if not isinstance(one, nn.SyncBatchNorm) and one.running_mean is not None]
        left_out = getattr(model, "_ddp_params_and_buffers_to_ignore", ())  # as DistributedDataParallel leaves them out
        self._others = {
            name: (module, key)
            for path, module in model.named_modules()
            if module not in norms
            for key in module._buffers
            if self._found(module, key).numel()
            if (name := f"{path}.{key}".lstrip(".")) not in left_out and key not in module._non_persistent_buffers_set
        }
        self._written: list[tuple[str, torch.Size, nn.Module, str]] = []
        self._chosen = group is None
        self._group = group
        self.warn: Callable[[str], None] = lambda text: None
        self._work: dist.Work | None = None
        self._flat: torch.Tensor | None = None
        self._moving: list[torch.Tensor] = []

    def others(self) -> dict[str, torch.Tensor]:
        """Return the buffers that are not averaged, by name."""
        return {name: self._found(*at) for name, at in self._others.items()}

    def _choose(self) -> None:
        """Find out with all ranks which other buffers the first pass has written."""
        self._chosen, others = True, self.others()
        if not others:
            return
        shapes = [torch.tensor(one.shape, dtype=torch.float64, device=one.device) for one in others.values()]
        tensors = [*others.values(), *shapes]
        total = digests(tensors)
        sum_now(total, self._group)
        places = differing(total, tensors, self._group.size(), _SAME)
        if places and places[-1] >= len(others):
            name = [*others][places[-1] - len(others)]
            raise TrainingError(_BY_WORKER.format(name=name, shape=tuple(others[name].shape)))
        names = [[*others][place] for place in places]
        self._written = [(name, others[name].shape, *self._others.pop(name)) for name in names]
        if names:
            self.warn(
                f"forward passes write the buffers {', '.join(names[:5])}{' …' * (len(names) > 5)}. uneven averages "
                f"them over the workers, weighted by samples. That is the value of one process if it is a mean over "
                f"the batch; see docs/how-to/what-works.md"
            )

    def start(self, weight: float) -> int:
        """Start the exchange; every rank calls it after the same forward pass.

        Returns:
            Bytes that this worker sends for it.
        """
        if self._work is not None:  # several forward passes before one backward pass
            self.finish()
        if not self._chosen:
            self._choose()
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
        for name, shape, module, key in self._written:
            if module.training:
                self._moving.append(buffer := self._found(module, key))
                if buffer.shape != shape:
                    raise TrainingError(_BY_WORKER.format(name=name, shape=tuple(buffer.shape)))
        return torch.cat([tensor.reshape(-1).double() for tensor in self._moving]) if self._moving else None

    def put(self, flat: torch.Tensor) -> None:
        """Write them back into the layers that :meth:`flat` took them from."""
        pieces = flat.split([tensor.numel() for tensor in self._moving])
        for tensor, piece in zip(self._moving, pieces, strict=True):
            tensor.copy_(piece.view_as(tensor))

    def _found(self, module: nn.Module, key: str) -> torch.Tensor:
        """Return a buffer; an empty one if it is gone, or has no floating-point numbers on the model's device."""
        one = module._buffers.get(key)
        if one is None or not one.is_floating_point() or one.layout != torch.strided or one.device != self._device:
            return torch.empty(0, device=self._device)
        return one
