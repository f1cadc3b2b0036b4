"""The process group of one generation, in which no worker waits for one that has failed.

Measured with gloo (torch 2.13): when a process dies, only its neighbours in the ring notice immediately; no member
notices a stopped process before the time-out; ``abort()`` wakes no waiter. So waiting is polled, and each poll checks
for failed members. Memory of a failed exchange may still be written later and must not be used again.
"""

import atexit
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from itertools import count
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore  # type: ignore[attr-defined] # its stubs say that it is private

from uneven.errors import PeerError

_POLL = timedelta(milliseconds=20)
_LONG = 50  # polls, so a second
_TIMED_OUT = ("timed out", "Timed out")


class Overdue(PeerError, TimeoutError):
    """Members that are alive have not all come in time."""


class GroupAborted(Exception):
    """An exchange that cannot end, because a member has failed or left it."""


class AbortableGroup:
    """The members of one generation, in one process group.

    Args:
        store: a connection without other use while the group is formed.
        name: of the generation and the purpose; the same on all members, and never reused.
        interface: address of this machine for the others; None for the loopback.
        lost: whether a member of this generation has failed or left; called every 20 ms during a wait.

    Raises:
        GroupAborted: a member failed before the group was formed, or gloo could not form it, which is then the cause.
        TimeoutError: a member did not come within ``timeout_s``.
    """

    def __init__(
        self,
        store: Any,
        name: str,
        place: int,
        size: int,
        *,
        interface: str | None,
        lost: Callable[[], bool],
        timeout_s: float,
    ) -> None:
        self.place = place
        self.size = size
        self.waits: Callable[[], object] = lambda: None  # called once in each wait that is long
        self._lost = lost
        self._timeout_s = timeout_s
        self._kept: list[Any] = []  # works must not be destroyed on gloo's own thread
        self.group: Any = None
        made: list[Any] = []

        def make() -> None:
            options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined] # not in torch's stubs
            # gloo's own time-out comes after ours, which can name the missing members.
            options._timeout = timedelta(seconds=timeout_s + _LATER_S)
            how = {"hostname": interface or "127.0.0.1"}
            options._devices = [dist.ProcessGroupGloo.create_device(**how)]
            made.append(dist.ProcessGroupGloo(PrefixStore(name, store), place, size, options))

        # In a thread, because the constructor blocks until all members come, and cannot be interrupted.
        thread = threading.Thread(target=_quietly(make, made), name="uneven-circle", daemon=True)
        thread.start()
        until_s = time.monotonic() + timeout_s
        while not made:
            thread.join(0.02 if thread.is_alive() else 0.0)
            if made:
                break
            if lost():
                raise GroupAborted(f"a member was gone before the group {name!r} was made")
            if time.monotonic() > until_s:
                raise TimeoutError(f"the group {name!r} of {size} workers was not made within {timeout_s:g} s")
        if isinstance(made[0], BaseException):
            raise GroupAborted(str(made[0])) from made[0]
        self.group = made[0]

    def sum(self, tensor: Tensor) -> Any:
        """Start to replace a tensor, of the same shape on all members, by its sum; raises :class:`GroupAborted`."""
        return self._begin(lambda: self.group.allreduce([tensor]))

    def broadcast(self, tensor: Tensor, source: int) -> Any:
        """Start to replace a tensor by that of the member at place ``source``, of the same shape; raises
        :class:`GroupAborted`."""
        options = dist.BroadcastOptions()
        options.rootRank = source
        return self._begin(lambda: self.group.broadcast([tensor], options))

    def swap(self, sent: Tensor, arrived: Tensor, sent_sizes: list[int], arrived_sizes: list[int]) -> Any:
        """Start an all-to-all of the pieces of ``sent`` and ``arrived``, flat, in the order of the members.
        Raises :class:`GroupAborted` if a connection has been closed."""
        # Not by sends and receives, each with its own wait: gloo closes all connections if such a wait is polled.
        options = dist.AllToAllOptions()
        return self._begin(lambda: self.group.alltoall_base(arrived, sent, arrived_sizes, sent_sizes, options))

    def _begin(self, begin: Callable[[], Any]) -> Any:
        try:
            work = begin()
        except RuntimeError as error:
            raise GroupAborted(str(error)) from None
        self._kept = [*self._kept[-_MOST:], work]
        return work

    def wait(self, work: Any) -> None:
        """Wait until the work has ended here. Raises :class:`GroupAborted` if a member has failed or left the
        exchange, and :class:`Overdue` if a member that is alive has not come in time."""
        until_s, lost = 0.0, False
        for polls in count():
            if polls == _LONG:
                self.waits()
            try:
                work.wait(_POLL)
                return
            except RuntimeError as error:
                if not any(text in str(error) for text in _TIMED_OUT):
                    raise GroupAborted(str(error)) from None
            now_s = time.monotonic()
            until_s = until_s or now_s + self._timeout_s
            if lost:
                raise GroupAborted("a member is gone, or has given it up")
            # A member that has the sums may already change members; then they arrive here, too.
            lost = self._lost()
            if now_s > until_s and not lost:
                raise Overdue(
                    f"an exchange of {self.size} workers did not end within {self._timeout_s:g} s, and all are alive. "
                    "One of them hangs, or the network is slow: give a larger timeout_s"
                )

    def drop(self, *more: Any) -> None:
        """Release the group and its works in a thread, and empty ``more``, lists of works or their memory."""
        # Connections close, and the neighbours' exchanges fail, when the last reference is gone. The destructor may
        # wait for a peer, so it runs in a thread.
        held = [self.group, self._kept, *[list(one) for one in more]]
        for one in more:
            one.clear()
        self.group, self._kept = None, []
        thread = threading.Thread(target=held.clear, name="uneven-drop", daemon=True)
        _DROPS[:] = [*(one for one in _DROPS if one.is_alive()), thread]
        thread.start()


_DROPS: list[threading.Thread] = []  # threads that release groups


@atexit.register
def _dropped() -> None:
    # If the interpreter ended a thread inside gloo's destructor, the process would abort.
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
