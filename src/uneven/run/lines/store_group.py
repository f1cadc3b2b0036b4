"""A process group over the store of the run. Builds of torch without gloo use it.

Each member writes its tensors into the store and reads those of the others. That is slow, because one process passes
all bytes on. It suffices for policies that push to a parameter server and pull from it: these exchange parameters at
the start and a few numbers later. Vectors go to the server through ZeroMQ.
"""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

NO_GLOO = "uneven_store"


def host_backend() -> str:
    """Return the name of the backend for tensors in host memory: gloo, or the store where torch has no gloo."""
    if dist.is_gloo_available():
        return "gloo"
    if not hasattr(dist.Backend, NO_GLOO.upper()):
        dist.Backend.register_backend(NO_GLOO, StoreGroup, devices=["cpu", "cuda"])
    return NO_GLOO


class StoreGroup(dist.ProcessGroup):
    """A group whose members exchange tensors through a store; sums are bit-identical on all members.

    An exchange writes when it begins, and waits for the others when its result is awaited. So members may begin
    exchanges of several groups in different orders, as with gloo. Tensors of one exchange have one shape and dtype.

    Args:
        store: torch's, with a part for this group alone.
        timeout: longest wait for the other members.

    Raises:
        RuntimeError: a member did not take part in time, the store does not answer, or gloo is needed.
    """

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg] # the stubs know the other constructor only
        self._store = store
        self._mine = rank
        self._timeout = timeout
        self._members = range(size)
        self._calls = 0

    def _set_group_name(self, name: str) -> None:
        self._name = name  # torch's own keeps the name in its backends, and here are none

    @property
    def group_name(self) -> Any:
        return self._name

    def getBackendName(self) -> str:
        return NO_GLOO

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> dist.Work:  # type: ignore[override] # an overload
        if tensors[0].is_sparse or (opts is not None and opts.reduceOp != dist.ReduceOp.SUM):
            raise RuntimeError("this build of torch has no gloo, and the run's store adds up dense tensors only")

        def add(theirs: list[Tensor]) -> None:
            total = theirs[0]
            for one in theirs[1:]:
                total += one
            tensors[0].copy_(total)

        return self._begin(tensors[0], self._members, add)

    def allgather(self, into: list[list[Tensor]], tensors: list[Tensor], opts: Any = None) -> dist.Work:  # type: ignore[override] # an overload
        return self._begin(tensors[0], self._members, lambda theirs: _copy(theirs, into[0]))

    def broadcast(self, tensors: list[Tensor], opts: Any) -> dist.Work:  # type: ignore[override] # an overload
        return self._begin(tensors[0], (opts.rootRank,), lambda theirs: _copy(theirs, tensors))

    def barrier(self, opts: Any = None) -> dist.Work:
        return self._begin(torch.zeros(1), (), lambda theirs: None)

    def _begin(self, like: Tensor, sources: Sequence[int], take: Callable[[list[Tensor]], None]) -> dist.Work:
        call, self._calls = self._calls, self._calls + 1
        # A member without a tensor to give writes, too: the others wait until it has begun this exchange.
        given = like.detach().cpu().contiguous().reshape(-1) if self._mine in sources else torch.empty(0)
        self._store.set(f"{call}/{self._mine}", given.view(torch.uint8).numpy().tobytes())

        def finish() -> None:
            keys = [f"{call}/{one}" for one in self._members]
            self._store.wait(keys, self._timeout)
            found = [bytearray(self._store.get(keys[one])) for one in sources]
            take([torch.frombuffer(one, dtype=like.dtype).view(like.shape) if one else like for one in found])
            if self._store.add(f"{call}/read", 1) == len(keys):
                for key in (*keys, f"{call}/read"):
                    self._store.delete_key(key)

        return _StoreWork(finish)


class _StoreWork(dist.Work):
    def __init__(self, finish: Callable[[], None]) -> None:
        super().__init__()
        self._finish: Callable[[], None] | None = finish

    def wait(self, timeout: timedelta | None = None) -> bool:
        finish, self._finish = self._finish, None
        if finish is not None:
            finish()
        return True

    def is_completed(self) -> bool:
        return self._finish is None


def _copy(theirs: Sequence[Tensor], into: Sequence[Tensor]) -> None:
    for found, tensor in zip(theirs, into, strict=True):
        tensor.copy_(found)
