"""The process group of one generation, in which nobody waits for one that is gone.

What was measured with gloo (torch 2.13): when a process dies, only its neighbours in the ring hear of it at once; of
one that was stopped, nobody does before the time-out; ``abort()`` wakes no waiter. Connections close, and with them the
others' exchanges fail, when the last reference to the group and to its works is gone. So waiting is polled, asking
between two polls whether a member is gone, and a group that has failed is let go of in a thread beside, as its
destructor may wait for a peer. Memory that was given to an exchange that has failed may be written into later: it must
not be used again.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed import HashStore, PrefixStore  # type: ignore[attr-defined] # its stubs say that they are private

from uneven.patience import within

_POLL = timedelta(milliseconds=20)
_TIMED_OUT = ("timed out", "Timed out")


class Broken(Exception):
    """An exchange that cannot come to its end, as a member is gone or has given it up."""


class Circle:
    """The members of one generation, in one process group.

    Args:
        store: a connection that is used for nothing else while the group is made.
        name: of the generation and the purpose; the same on all members, and never used again.
        place, size: of this worker, among how many.
        interface: address of this machine for the others; None for the loopback.
        lost: whether a member of this generation is gone, or has given up; asked every 20 ms while one waits.
        timeout_s: for how long an exchange may take if nobody is gone.

    Raises:
        Broken: somebody was gone before the group was made.
        TimeoutError: somebody did not come within ``timeout_s``.
    """

    def __init__(
        self, store: Any, name: str, place: int, size: int, *, interface: str | None, lost: Callable[[], bool],
        timeout_s: float,
    ) -> None:  # fmt: skip
        self.place, self.size = place, size
        self._lost, self._timeout_s = lost, timeout_s
        self._kept: list[Any] = []  # works must not be destroyed on gloo's own thread
        self.group: Any = None
        made: list[Any] = []

        def make() -> None:
            options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined] # not in torch's stubs
            options._timeout = timedelta(seconds=timeout_s + _LATER_S)
            how = {"hostname": interface or "127.0.0.1"}
            options._devices = [dist.ProcessGroupGloo.create_device(**how)]
            made.append(dist.ProcessGroupGloo(PrefixStore(name, store), place, size, options))

        thread = threading.Thread(target=_quietly(make, made), name="uneven-circle", daemon=True)
        thread.start()
        until_s = time.monotonic() + timeout_s
        while not made:
            thread.join(0.02 if thread.is_alive() else 0.0)
            if made:
                break
            if lost():
                raise Broken(f"a member was gone before the group {name!r} was made")
            if time.monotonic() > until_s:
                raise TimeoutError(f"the group {name!r} of {size} workers was not made within {timeout_s:g} s")
        if isinstance(made[0], BaseException):
            raise Broken(str(made[0]))
        self.group = made[0]

    def sum(self, tensor: Tensor) -> Any:
        """Begin to replace a tensor, of the same shape on all members, by its sum; wait with :meth:`wait`.

        Raises:
            Broken: a connection is gone already.
        """
        return self._begin(lambda: self.group.allreduce([tensor]))

    def broadcast(self, tensor: Tensor, source: int) -> Any:
        """Begin to replace a tensor by that of the member at place ``source``, of the same shape.

        Raises:
            Broken: a connection is gone already.
        """
        options = dist.BroadcastOptions()
        options.rootRank = source
        return self._begin(lambda: self.group.broadcast([tensor], options))

    def swap(self, sent: Tensor, arrived: Tensor, sent_sizes: list[int], arrived_sizes: list[int]) -> Any:
        """Begin to send each member its piece of ``sent``, and to receive one of each into ``arrived``.

        Two members that send to each other are not waited for one by one: where such a wait is polled, gloo closes all
        connections.

        Args:
            sent, arrived: one axis; the pieces lie in them by place of the members.
            sent_sizes, arrived_sizes: numbers in each.

        Raises:
            Broken: a connection is gone already.
        """
        options = dist.AllToAllOptions()
        return self._begin(lambda: self.group.alltoall_base(arrived, sent, arrived_sizes, sent_sizes, options))

    def _begin(self, begin: Callable[[], Any]) -> Any:
        try:
            work = begin()
        except RuntimeError as error:
            raise Broken(str(error)) from None
        self._kept = [*self._kept[-_MOST:], work]
        return work

    def wait(self, work: Any) -> None:
        """Return when it is done here.

        Raises:
            Broken: a member is gone, or has given it up.
            TimeoutError: a member that is alive has not come within the time-out.
        """
        until_s = 0.0
        while True:
            try:
                work.wait(_POLL)
                return
            except RuntimeError as error:
                if not any(text in str(error) for text in _TIMED_OUT):
                    raise Broken(str(error)) from None
            now_s = time.monotonic()
            until_s = until_s or now_s + self._timeout_s
            if self._lost():
                raise Broken("a member is gone, or has given it up")
            if now_s > until_s:
                raise TimeoutError(f"an exchange of {self.size} workers did not end within {self._timeout_s:g} s")

    def drop(self, *more: Any) -> None:
        """Let go of the group and of works in it, beside: the neighbours hear of it when the last reference is gone.

        Args:
            more: lists that hold works or their memory; they are emptied.
        """
        held = [self.group, self._kept, *[list(one) for one in more]]
        for one in more:
            one.clear()
        self.group, self._kept = None, []
        thread = threading.Thread(target=held.clear, name="uneven-drop", daemon=True)
        _DROPS[:] = [*(one for one in _DROPS if one.is_alive()), thread]
        thread.start()


def alone() -> dist.ProcessGroup:
    """A group of this process only, for what wants one and must not meet anybody."""
    store = HashStore()
    backend = within(10.0, lambda: dist.ProcessGroupGloo(PrefixStore("alone", store), 0, 1, timedelta(seconds=10)))
    group: dist.ProcessGroup = dist.ProcessGroup(store, 0, 1)
    import torch

    group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, backend)
    group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
    return group


_DROPS: list[threading.Thread] = []
"""Threads in which groups are let go of."""


@atexit.register
def _dropped() -> None:
    """A thread that the interpreter ends inside of gloo's destructor aborts the process, so wait for them."""
    until_s = time.monotonic() + _DROPPED_WITHIN_S
    for thread in _DROPS:
        thread.join(max(0.0, until_s - time.monotonic()))


def _quietly(make: Callable[[], None], made: list[Any]) -> Callable[[], None]:
    def run() -> None:
        try:
            make()
        except RuntimeError as error:
            made.append(error)

    return run


_MOST = 64
_DROPPED_WITHIN_S = 5.0
_LATER_S = 30.0
"""gloo's own time-out comes after ours, which can say who is missing."""
