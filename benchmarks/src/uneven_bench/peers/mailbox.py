"""Letters between ranks, on a separate gloo group: whole numbers, and sometimes a vector of gradients."""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from uneven.errors import PeerError

_HEADERS, _VECTORS = 1, 2
_STOP = -1


@dataclass(frozen=True, slots=True)
class Letter:
    """A received letter and its sender; the vector is mostly None."""

    sender: int
    numbers: tuple[int, ...]
    vector: torch.Tensor | None = None


class Mailbox:
    """A mailbox of each rank. Making and closing one is collective: all ranks of the default group, in the same order.

    Letters from one rank keep their order. A letter to its sender goes straight into the queue.

    ``numbers``: of a letter; ``vector``: length of the vectors; ``dtype`` is their type; ``timeout_s``: the longest
    wait of :meth:`get` and the group for any letter. ``received``: letters from each rank, opened or not.
    """

    def __init__(
        self, *, numbers: int, vector: int = 0, dtype: torch.dtype = torch.float32, timeout_s: float = 300.0
    ) -> None:
        self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))
        self._rank = dist.get_rank()
        self._size = dist.get_world_size()
        self._numbers = numbers
        self._vector = vector
        self._dtype = dtype
        self._timeout_s = timeout_s
        self.received = [0] * self._size
        self._queue: queue.SimpleQueue[Letter | PeerError] = queue.SimpleQueue()
        self._sent: list[tuple[dist.Work, torch.Tensor]] = []
        # gloo's ``is_completed`` of a receive stays False until ``wait``, so a thread waits, and fills a queue.
        self._thread: threading.Thread | None = None
        if self._size > 1:
            self._thread = threading.Thread(target=self._listen, name="uneven-mailbox", daemon=True)
            self._thread.start()

    def send(self, to: int, numbers: tuple[int, ...], vector: torch.Tensor | None = None) -> None:
        """Start sending numbers and perhaps a vector, flat; the caller must not change it before :meth:`flush`."""
        if to == self._rank:
            self._queue.put(Letter(to, numbers, None if vector is None else vector.clone()))
            return
        header = torch.tensor([*numbers, 0 if vector is None else 1], dtype=torch.int64)
        self._start(header, to, _HEADERS)
        if vector is not None:
            self._start(vector, to, _VECTORS)

    def _start(self, tensor: torch.Tensor, to: int, tag: int) -> None:
        work = dist.isend(tensor, dst=to, group=self._group, tag=tag)
        if work is None:
            raise PeerError(f"rank {self._rank} is not in the group of its mailbox")
        self._sent.append((work, tensor))

    def flush(self) -> None:
        """Wait until the receivers have taken all letters. Raises PeerError: one did not."""
        sent, self._sent = self._sent, []
        try:
            for work, _ in sent:
                work.wait()
        except RuntimeError as error:
            raise PeerError(f"rank {self._rank}: a letter was not taken: {error}") from error

    def get(self) -> Letter:
        """Wait for the next letter. Raises PeerError: none came in time, or a rank is gone."""
        try:
            return self._opened(self._queue.get(timeout=self._timeout_s))
        except queue.Empty:
            raise PeerError(f"rank {self._rank}: no letter from anybody within {self._timeout_s:g} s") from None

    def poll(self) -> Letter | None:
        """Return the next letter if one has come. Raises PeerError: a rank is gone."""
        try:
            return self._opened(self._queue.get_nowait())
        except queue.Empty:
            return None

    def _opened(self, what: Letter | PeerError) -> Letter:
        if isinstance(what, PeerError):
            raise what
        return what

    def close(self) -> None:
        """End the thread; no rank sends any more after the barrier."""
        self.flush()
        if self._thread is not None:
            dist.barrier()
            self._start(torch.full((self._numbers + 1,), _STOP, dtype=torch.int64), (self._rank + 1) % self._size, 1)
            self.flush()
            self._thread.join()
            self._thread = None
            dist.barrier()  # or a rank might leave, and its connections end, before the others have finished
            dist.destroy_process_group(self._group)

    def _listen(self) -> None:
        try:
            while True:
                header = torch.empty(self._numbers + 1, dtype=torch.int64)
                sender = dist.recv(header, group=self._group, tag=_HEADERS)
                *numbers, has_vector = header.tolist()
                if has_vector == _STOP:
                    return
                vector = None
                if has_vector:
                    vector = torch.empty(self._vector, dtype=self._dtype)
                    dist.recv(vector, src=sender, group=self._group, tag=_VECTORS)
                self._queue.put(Letter(int(sender), tuple(numbers), vector))
                self.received[int(sender)] += 1
        except RuntimeError as error:
            self._queue.put(PeerError(f"rank {self._rank}: the connection to another rank broke: {error}"))
