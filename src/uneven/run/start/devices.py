"""Which device belongs to a worker, and what carries tensors between the devices of all of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from uneven.world import World


def device_of(world: World) -> torch.device:
    """The CUDA device of this worker: as the workers of a machine are counted, so are its GPUs. Else the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda", world.local_rank % torch.cuda.device_count())
    return torch.device("cpu")


def gpu_of(world: World) -> str:
    """What tells this worker's GPU from every other one; empty where it has none that NCCL works on."""
    device = device_of(world)
    if device.type != "cuda" or not dist.is_nccl_available():
        return ""
    return str(torch.cuda.get_device_properties(device).uuid)


def backend_for(gpus: Sequence[str]) -> str:
    """The backend of a process group, from what :func:`gpu_of` says on each rank.

    NCCL refuses workers that share a GPU, and reaches none without one. gloo carries tensors of GPUs, too, through host
    memory, so where one worker has no GPU to itself, all use it.
    """
    own = all(gpus) and len(set(gpus)) == len(gpus)
    return "cpu:gloo,cuda:nccl" if own else "gloo"
