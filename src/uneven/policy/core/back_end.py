"""The decision how tensors travel between workers, from the devices of all."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

_OWN = {"cuda": "nccl", "xpu": "xccl"}  # the back end of a device's own, by torch's name of its type


class WorkerDevice(NamedTuple):
    """The device of one worker.

    Attributes:
        vendor: "cuda" (NVIDIA), "rocm" (AMD, which torch calls cuda as well), "xpu", "mps" or "cpu".
        uuid: of the GPU; empty if it has none, or if this torch cannot exchange on it.
    """

    vendor: str = "cpu"
    uuid: str = ""


def backend_for(devices: Sequence[WorkerDevice]) -> str:
    """Return the back end of a process group of workers with these devices, for ``init_process_group``.

    NCCL if each worker has another GPU of the same vendor, otherwise gloo.
    """
    # torch calls AMD's RCCL "nccl", too, but the two cannot communicate. Both need a GPU for each worker.
    alike = {one.vendor for one in devices} in ({"cuda"}, {"rocm"})
    apart = all(one.uuid for one in devices) and len({one.uuid for one in devices}) == len(devices)
    return "cpu:gloo,cuda:nccl" if alike and apart else "gloo"


def takes(backend: str, kind: str) -> bool:
    """Return whether a back end takes tensors from the memory of a device, instead of from the host's.

    Args:
        backend: as torch describes it, "cpu:gloo,cuda:nccl".
        kind: torch's name of the device's type, "cuda".
    """
    # gloo copies CUDA tensors by itself, but only in some exchanges, and no others.
    return kind == "cpu" or (kind in _OWN and _OWN[kind] in backend)


def through_host(backend: str, kinds: Collection[str]) -> bool:
    """Return whether workers whose models are on devices of these kinds exchange through host memory.

    All do if any of them must, because both ends of an exchange need the same back end.
    """
    return len(set(kinds)) > 1 or not all(takes(backend, kind) for kind in kinds)
