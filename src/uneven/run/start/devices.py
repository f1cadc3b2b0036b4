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
    """Vendor and id of this worker's GPU, "cuda GPU-1f0…"; empty where it has none that NCCL works on."""
    device = device_of(world)
    if device.type != "cuda" or not dist.is_nccl_available():
        return ""
    return f"{'rocm' if torch.version.hip else 'cuda'} {torch.cuda.get_device_properties(device).uuid}"


def backend_for(gpus: Sequence[str]) -> str:
    """Return the backend of a process group, from the result of :func:`gpu_of` on each rank.

    NCCL refuses workers that share a GPU, and reaches none without one. AMD's RCCL has the same name in torch, and the
    two do not talk to each other. gloo carries tensors of all GPUs through host memory, so if one worker has no GPU to
    itself, or one of the other vendor, all use it.
    """
    own = all(gpus) and len(set(gpus)) == len(gpus) and len({gpu.split()[0] for gpu in gpus}) == 1
    return "cpu:gloo,cuda:nccl" if own else "gloo"
