"""The arms of ``uneven bench sync`` that are PyTorch's own."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from uneven.errors import UnknownNameError
from uneven_bench.sync.arm import SyncArm

_WARM = 2
"""Steps in which PowerSGD sends whole gradients; torch needs two at least, as it rebuilds buckets after the first."""

_ONE_BUCKET_MB = 64.0  # PowerSGD of torch 2.13 hangs over gloo with more than one bucket


class Stock(SyncArm):
    """PyTorch's DDP, also with its hooks for fp16 and PowerSGD. Raises UnknownNameError: no such hook."""

    def __init__(self, model: nn.Module, batches: DataLoader[Any], hook: str) -> None:
        super().__init__(model)
        bucket_mb = _ONE_BUCKET_MB if hook == "powersgd" else None
        self.net = ddp = DistributedDataParallel(model, gradient_as_bucket_view=True, bucket_cap_mb=bucket_mb)
        hooks: dict[str, Callable[[], None]] = {
            "none": lambda: None,
            "fp16": lambda: ddp.register_comm_hook(None, fp16_compress_hook),
            "powersgd": lambda: ddp.register_comm_hook(
                PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=_WARM), powerSGD_hook
            ),
        }
        if hook not in hooks:
            raise UnknownNameError("hook", hook, hooks)
        hooks[hook]()
        self.batches = iter(batches)


class PostLocal(SyncArm):
    """PyTorch's post-local SGD: its averager, and the hook that drops gradients after the warm-up."""

    def __init__(self, model: nn.Module, batches: DataLoader[Any], every: int) -> None:
        super().__init__(model)
        self.every = every
        self.net = ddp = DistributedDataParallel(model, gradient_as_bucket_view=True)
        state = PostLocalSGDState(None, None, start_localSGD_iter=every, post_local_gradient_allreduce=False)
        ddp.register_comm_hook(state, post_localSGD_hook)
        averager = PeriodicModelAverager(period=every, warmup_steps=every)
        self.optimizer = PostLocalSGDOptimizer(self.optimizer, averager)
        self.batches = iter(batches)

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Evaluate the mean of the replicas."""
        own = [parameter.detach().clone() for parameter in self.model.parameters()]
        with torch.no_grad():
            for parameter in self.model.parameters():
                dist.all_reduce(parameter)
                parameter.div_(dist.get_world_size())
        yield
        with torch.no_grad():
            for parameter, before in zip(self.model.parameters(), own, strict=True):
                parameter.copy_(before)
