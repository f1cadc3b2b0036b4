"""The memory that all share: prepared samples, written once, read by every member where they lie.

The memory has no name in any file system. The kernel takes it back when the last process that maps it is gone,
however it ended, so nothing has to be cleaned up, even after everything was killed.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import warnings
from collections.abc import Callable
from multiprocessing import reduction
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil
import torch

from uneven.errors import ConfigError
from uneven.fleet.stream.layout import Layout
from uneven.jobs.place import ProcessLine

_ALIGN = 64


class Ring:
    """Room for ``slots`` chunks of ``chunk`` samples; each field of all samples lies in one piece.

    Sample p of the stream lies at place p mod (slots · chunk), so a batch is a slice, unless it goes around the end.

    Args:
        memory: an open file descriptor; None makes new memory.
        writable: False maps it so that writing ends the process: nobody can spoil a batch that others still read.

    Raises:
        ConfigError: the memory is not to be had.
    """

    def __init__(self, layout: Layout, *, slots: int, chunk: int, memory: int | None = None, writable: bool) -> None:
        self.layout = layout
        self.slots = slots
        self.chunk = chunk
        places = slots * chunk
        sizes = [-(-places * field.nbytes // _ALIGN) * _ALIGN for field in layout]
        self.nbytes = max(sum(sizes), _ALIGN)
        self._memory = _allocate(self.nbytes) if memory is None else memory
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        self._map = mmap.mmap(self._memory, self.nbytes, access=access)
        self.fields: list[npt.NDArray[Any]] = []
        start = 0
        for field, size in zip(layout, sizes, strict=True):
            count = places * int(np.prod(field.shape, dtype=np.int64))
            flat = np.frombuffer(self._map, dtype=field.dtype, count=count, offset=start)
            self.fields.append(flat.reshape(places, *field.shape))
            start += size
        with warnings.catch_warnings():  # that it must not be written to is the point
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            self.tensors = [torch.from_numpy(field) for field in self.fields]

    def slot(self, number: int) -> list[npt.NDArray[Any]]:
        """Where the samples of a chunk lie, field by field; arrays of shape ``(chunk, …)``."""
        first = number % self.slots * self.chunk
        return [field[first : first + self.chunk] for field in self.fields]

    def batch(self, start: int, size: int) -> list[torch.Tensor]:
        """The samples from place ``start`` of the stream on, a tensor of shape (samples, …) for each field.

        Views into the shared memory; a batch that goes around the end of the ring is a copy.
        """
        places = self.slots * self.chunk
        first, last = start % places, start % places + size
        if last <= places:
            return [tensor[first:last] for tensor in self.tensors]
        return [torch.cat((tensor[first:], tensor[: last - places])) for tensor in self.tensors]

    def handle(self, *, writable: bool) -> RingHandle:
        """What another process needs to map the same memory; goes into the arguments of a new process."""
        return RingHandle(self.layout, self.slots, self.chunk, self._memory, writable)

    def made(self, number: int) -> Any:
        """What readers need to know of a chunk in its slot: nothing, whoever maps the memory finds it."""
        return None

    def arrived(self, reference: None) -> None:
        """What a reader gets beside the number of chunks that are there."""

    def free(self, chunk: int) -> None:
        """This reader needs nothing below a chunk."""

    def forget(self) -> None:
        """This reader starts anew."""

    def keep(self, number: int, reference: None) -> None:
        """The engine has heard that a chunk was made."""

    def found(self, first: int, end: int) -> None:
        """What readers get of chunks beside their numbers."""

    def lost(self, number: int, reference: None) -> bool:
        """Whether a chunk that was there is gone; shared memory loses none."""
        return False

    def drop(self, below: int) -> None:
        """Nobody needs the chunks below this one."""

    def close(self) -> None:
        """Give the memory back, once nobody in this process looks at it any more. Twice is no error."""
        if self._memory >= 0:
            self.fields.clear()
            self.tensors.clear()
            os.close(self._memory)
            self._memory = -1


class RingHandle:
    """A ring on its way into another process."""

    def __init__(self, layout: Layout, slots: int, chunk: int, memory: int, writable: bool) -> None:
        self._rest = layout, slots, chunk, writable
        self._memory = memory

    def __reduce__(self) -> tuple[Callable[..., RingHandle], tuple[Any, ...]]:
        return _arrived, (reduction.DupFd(self._memory), self._rest)

    def open(self, line: ProcessLine | None = None) -> Ring:
        """Map it in this process."""
        layout, slots, chunk, writable = self._rest
        return Ring(layout, slots=slots, chunk=chunk, memory=self._memory, writable=writable)


def _arrived(descriptor: Any, rest: tuple[Layout, int, int, bool]) -> RingHandle:
    layout, slots, chunk, writable = rest
    return RingHandle(layout, slots, chunk, descriptor.detach(), writable)


def _allocate(nbytes: int) -> int:
    free = psutil.virtual_memory().available
    if nbytes > free:
        raise ConfigError(
            f"the shared buffer needs {nbytes / 1e6:,.0f} MB and {free / 1e6:,.0f} MB are free: give train(…, "
            f"buffer=…) fewer samples"
        )
    try:
        if hasattr(os, "memfd_create"):
            memory = os.memfd_create("uneven-fleet", os.MFD_CLOEXEC)
        else:
            with tempfile.TemporaryFile() as file:
                memory = os.dup(file.fileno())
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(memory, 0, nbytes)  # now, not when somebody writes into it and is killed
        else:
            os.ftruncate(memory, nbytes)
    except OSError as error:
        raise ConfigError(
            f"the shared buffer needs {nbytes / 1e6:,.0f} MB, which cannot be had ({error.strerror}): give "
            f"train(…, buffer=…) fewer samples"
        ) from error
    return memory
