"""A device without hardware, whose tensors are in host memory; torch knows it for the rest of the process."""

from __future__ import annotations

from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._pytree import tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

KIND = "pretended"
_setup_privateuseone_for_python_backend(KIND)


class OnDevice(Tensor):
    """A tensor on that device, which only copies from and to the host."""

    memory: Tensor

    @staticmethod
    def __new__(cls, memory: Tensor) -> Self:
        made: Self = Tensor._make_wrapper_subclass(cls, memory.shape, dtype=memory.dtype, device=KIND)  # type: ignore[attr-defined]
        made.memory = memory
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return cls(args[0].memory)
        if func not in (torch.ops.aten.copy_.default, torch.ops.aten._foreach_copy_.default):
            raise NotImplementedError(f"{func} on the device")
        return func(*tree_map(lambda one: one.memory if isinstance(one, OnDevice) else one, args), **kwargs or {})


class Copied:
    """The end of a copy, which torch cannot mark on such a device."""

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        """Do nothing: the copy is made as soon as it is asked for."""


def main() -> None:
    """Stage tensors of the device in each way."""
    from uneven.run.lines import staging
    from uneven.run.lines.group_lines import sum_now
    from uneven.run.lines.staging import HostCopy, is_taken, may_stage, on_host
    from uneven.run.replicas import flat as vectors
    from uneven.run.replicas.flat import Flat

    staging.mark_copied = vectors.mark_copied = lambda device: Copied()
    one, two = OnDevice(torch.arange(4.0)), OnDevice(torch.ones(2))
    assert may_stage()
    assert not is_taken(one)
    copy = HostCopy(one, taken=False)
    copy.fetch()
    copy.wait()
    assert copy.host.tolist() == [0.0, 1.0, 2.0, 3.0]
    copy.put(copy.host + 1.0)
    assert one.memory.tolist() == [1.0, 2.0, 3.0, 4.0]
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    sum_now(two, None)
    with on_host(two) as host:
        host += 1.0
    dist.destroy_process_group()
    assert two.memory.tolist() == [2.0, 2.0]
    flat = Flat([one, two], on_host=True)
    vector = flat.read()
    assert vector.tolist() == [1.0, 2.0, 3.0, 4.0, 2.0, 2.0]
    flat.write(vector * 2.0)
    assert one.memory.tolist() == [2.0, 4.0, 6.0, 8.0]


if __name__ == "__main__":
    main()
