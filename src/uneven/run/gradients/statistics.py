"""Batch-norm statistics that stay equal on all ranks: their mean, weighted by samples.

DDP broadcasts rank 0's before every forward pass, but rank 0 may have seen the fewest samples. Running statistics are
linear in a batch's, so the weighted mean of running statistics is the running mean of weighted ones. The exchange
overlaps with the backward pass, as that of gradients does.

Other buffers that forward passes write (running normalizers, codebooks) are averaged in the same way. All ranks find
them together: they differ between ranks after the first pass.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from uneven.errors import TrainingError
from uneven.run.gradients.replica_check import differing, digests, wide_place
from uneven.run.lines.group_lines import begin_sum, sum_now
from uneven.run.lines.traffic import bytes_of_sum

# The part of its norm by which a buffer that no pass has written may differ between ranks. The compared sums have 16
# digits, and subtracting their squares loses half of them.
_SAME = 1e-6

_BY_WORKER = (
    "forward passes write buffer {name}, and its shape {shape} depends on the worker or the batch, so workers cannot "
    "agree on it: name it in model._ddp_params_and_buffers_to_ignore before session.setup if each worker is to keep "
    "its own, or register it with persistent=False"
)


class BatchStatistics:
    """The running statistics of a model's batch-norm layers, and other buffers that forward passes write.

    Layers in evaluation mode are skipped: their statistics do not change, and a mean would add rounding. So are
    synchronised layers, whose statistics are already equal. All workers have the first one's buffers already.
    Without a ``group`` the caller exchanges :meth:`flat`.
    """

    def __init__(self, model: nn.Module, group: Any = None) -> None:
        self._device = next(model.parameters()).device
        left_out = getattr(model, "_ddp_params_and_buffers_to_ignore", ())  # DistributedDataParallel skips them too
        norms = {layer: path for path, layer in model.named_modules() if isinstance(layer, _BatchNorm)}
        self._layers = [
            one
            for one, path in norms.items()
            if not isinstance(one, nn.SyncBatchNorm) and one.running_mean is not None
            if f"{path}.running_mean".lstrip(".") not in left_out
        ]
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
        """Return the named buffers that are not averaged, in their own shapes."""
        return {name: self._found(*at) for name, at in self._others.items()}

    def choose(self) -> None:
        """Find the buffers that forward passes write, after the first pass on every rank; later calls do nothing."""
        others = {} if self._chosen else self.others()
        self._chosen = True
        if not others:
            return
        shapes = [wide_place(one).new_tensor(one.shape, dtype=torch.float64) for one in others.values()]
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
        """Start the exchange after the same forward pass on every rank; return the bytes that this worker sends."""
        if self._work is not None:  # several forward passes before one backward pass
            self.finish()
        if not self._chosen:
            self.choose()
        flat = self.flat()
        if flat is None:
            return 0
        self._work = begin_sum(flat.mul_(weight), self._group)
        return bytes_of_sum(flat.nbytes, self._group.size())

    def finish(self) -> None:
        """Wait for the exchange and write the mean back."""
        if self._work is not None:
            self._work.wait()
            self._work = None
            self.put()

    def flat(self) -> torch.Tensor | None:
        """Return this worker's statistics of the layers in training, flat float64 (numbers,), until :meth:`put`; None
        without any."""
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
        moving = [wide_place(one) for one in self._moving] if self._device.type == "mps" else self._moving
        self._flat = torch.cat([one.reshape(-1).double() for one in moving]) if moving else None
        return self._flat

    def put(self) -> None:
        """Write the numbers of :meth:`flat`, which may have changed, back into the layers that it read."""
        if self._flat is not None:
            pieces = self._flat.split([tensor.numel() for tensor in self._moving])
            for tensor, piece in zip(self._moving, pieces, strict=True):
                tensor.copy_(piece.view_as(tensor))
            self._flat = None

    def _found(self, module: nn.Module, key: str) -> torch.Tensor:
        """Return a buffer, in any shape; an empty one if it is missing or not floating-point on the model's device."""
        one = module._buffers.get(key)
        if one is None or not one.is_floating_point() or one.layout != torch.strided or one.device != self._device:
            return torch.empty(0, device=self._device)
        return one
