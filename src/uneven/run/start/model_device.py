"""The device of a worker, and the backend that connects the devices of all workers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from uneven.runtime.world import World


def device_of(world: World) -> torch.device:
    """Return the CUDA device with this worker's local rank (modulo the number of GPUs), or the CPU without CUDA."""
    if torch.cuda.is_available():
        return torch.device("cuda", world.local_rank % torch.cuda.device_count())
    return torch.device("cpu")


def gpu_of(world: World) -> str:
    """Return vendor and id of this worker's GPU, "cuda GPU-1f0…"; empty if it has none that NCCL supports."""
    device = device_of(world)
    if device.type != "cuda" or not dist.is_nccl_available():
        return ""
    return f"{'rocm' if torch.version.hip else 'cuda'} {torch.cuda.get_device_properties(device).uuid}"


def backend_for(gpus: Sequence[str]) -> str:
    """Return the backend of a process group, from the result of :func:`gpu_of` on each rank."""
    # NCCL supports neither two workers on one GPU nor a worker without one. torch also calls AMD's RCCL "nccl", but the
    # two cannot communicate. In all these cases every worker uses gloo, which copies GPU tensors through host memory.
    own = all(gpus) and len(set(gpus)) == len(gpus) and len({gpu.split()[0] for gpu in gpus}) == 1
    return "cpu:gloo,cuda:nccl" if own else "gloo"
