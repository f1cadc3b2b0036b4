"""Share memory between all processes: samples are written once and read in place by every member."""

import mmap
import os
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import reduction
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil
import torch

from uneven.errors import ConfigError, DataError
from uneven.runtime.jobs.executor import ProcessLine


@dataclass(frozen=True, slots=True)
class Field:
    """One part of a sample, such as an image or a label."""

    dtype: str  # NumPy's name
    shape: tuple[int, ...]  # of one sample

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize

    def __str__(self) -> str:
        return f"{self.dtype} {self.shape}"


Layout = tuple[Field, ...]


def arrays_of(sample: Any, what: str) -> list[npt.NDArray[Any]]:
    """Return the fields of a sample as arrays of any shape; a sample that is not a tuple or list has one field.

    Numbers become int64 and float64, as in torch's ``default_collate``. Raises `DataError`, which names the sample as
    `what`, if a field is not a tensor, array or number.
    """
    fields = sample if isinstance(sample, tuple | list) else (sample,)
    return [_array(field, number, what) for number, field in enumerate(fields)]


def _array(field: Any, number: int, what: str) -> npt.NDArray[Any]:
    if isinstance(field, torch.Tensor):
        try:
            return field.detach().numpy()
        except TypeError as error:
            raise DataError(f"{what}: field {number} is a tensor that NumPy cannot represent ({error})") from error
    if isinstance(field, np.ndarray | np.generic | bool | int | float):
        array = np.asarray(field)
        if array.dtype.kind in "biuf":
            return array
    raise DataError(
        f"{what}: field {number} is a {type(field).__name__}: let the transform return tensors, arrays or numbers"
    )


def layout_of(sample: Any, what: str) -> Layout:
    """Return the layout that all samples must have. Raises `DataError` if a field is not a tensor, array or number."""
    return tuple(Field(array.dtype.name, array.shape) for array in arrays_of(sample, what))


def check(arrays: list[npt.NDArray[Any]], layout: Layout, what: str) -> None:
    """Check that a sample's arrays, of any shape, have this layout. Raises `DataError`, which names both."""
    if len(arrays) == len(layout) and all(
        array.shape == field.shape and array.dtype.name == field.dtype
        for array, field in zip(arrays, layout, strict=True)
    ):
        return
    found = ", ".join(f"{array.dtype.name} {array.shape}" for array in arrays)
    raise DataError(
        f"{what} has the fields {found}, but the training set's first sample has {', '.join(map(str, layout))}: "
        "let the transform give every sample the same types and shapes"
    )


_ALIGN = 64


class Ring:
    """The memory for ``slots`` chunks of ``chunk`` samples; all samples of a field are contiguous.

    Sample p of the stream is at position p mod (slots · chunk), so a batch is a slice unless it wraps around. `memory`
    is an open file descriptor; None makes new memory. Unless `writable`, writing ends the process, which protects
    batches that others still read. Raises `ConfigError` if the memory is not available.
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
        with warnings.catch_warnings():  # torch warns of read-only memory, which is intended here
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            self.tensors = [torch.from_numpy(field) for field in self.fields]

    def slot(self, number: int) -> list[npt.NDArray[Any]]:
        """Return the arrays of a chunk's samples, of shape (chunk, …) per field."""
        first = number % self.slots * self.chunk
        return [field[first : first + self.chunk] for field in self.fields]

    def batch(self, start: int, size: int) -> list[torch.Tensor]:
        """Return the samples from position ``start`` of the stream on, a tensor of shape (samples, …) per field.

        Views of the shared memory; a batch that wraps around is a copy.
        """
        places = self.slots * self.chunk
        first, last = start % places, start % places + size
        if last <= places:
            return [tensor[first:last] for tensor in self.tensors]
        return [torch.cat((tensor[first:], tensor[: last - places])) for tensor in self.tensors]

    def handle(self, *, writable: bool) -> "RingHandle":
        """Return the arguments with which a new process maps the same memory."""
        return RingHandle(self.layout, self.slots, self.chunk, self._memory, writable)

    def made(self, number: int) -> Any:
        """Return None: readers of shared memory need no reference to a chunk."""
        return None

    def arrived(self, reference: None) -> None:
        """Ignore references."""

    def free(self, chunk: int) -> None:
        """Do nothing: readers of shared memory hold no references."""

    def forget(self) -> None:
        """Do nothing."""

    def keep(self, number: int, reference: None) -> None:
        """Do nothing."""

    def found(self, first: int, end: int) -> None:
        """Return None: there are no references."""

    def lost(self, number: int, reference: None) -> bool:
        """Return False: shared memory loses no chunk."""
        return False

    def drop(self, below: int) -> None:
        """Do nothing: the slot is written again later."""

    def close(self) -> None:
        """Release the memory once no view of it is left in this process. Idempotent."""
        if self._memory >= 0:
            # The map itself is closed when the last view is freed; closing it earlier would raise a BufferError.
            self.fields.clear()
            self.tensors.clear()
            os.close(self._memory)
            self._memory = -1


class RingHandle:
    """A description of a ring that can be sent to another process."""

    def __init__(self, layout: Layout, slots: int, chunk: int, memory: int, writable: bool) -> None:
        self._rest = layout, slots, chunk, writable
        self._memory = memory

    def __reduce__(self) -> "tuple[Callable[..., RingHandle], tuple[Any, ...]]":
        return _arrived, (reduction.DupFd(self._memory), self._rest)

    def open(self, line: ProcessLine | None = None) -> Ring:
        layout, slots, chunk, writable = self._rest
        return Ring(layout, slots=slots, chunk=chunk, memory=self._memory, writable=writable)


def _arrived(descriptor: Any, rest: tuple[Layout, int, int, bool]) -> RingHandle:
    layout, slots, chunk, writable = rest
    return RingHandle(layout, slots, chunk, descriptor.detach(), writable)


def _allocate(nbytes: int) -> int:
    free = psutil.virtual_memory().available
    if nbytes > free:
        raise ConfigError(
            f"the shared buffer needs {nbytes / 1e6:,.0f} MB, but {free / 1e6:,.0f} MB are free: give train(…, "
            "buffer=…) fewer samples"
        )
    try:
        # Memory without a name in any file system: the kernel frees it with the last process that maps it, however it
        # ends.
        if hasattr(os, "memfd_create"):
            memory = os.memfd_create("uneven-fleet", os.MFD_CLOEXEC)
        else:
            with tempfile.TemporaryFile() as file:
                memory = os.dup(file.fileno())
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(memory, 0, nbytes)  # fails here, instead of killing a process that writes later
        else:
            os.ftruncate(memory, nbytes)
    except OSError as error:
        raise ConfigError(
            f"the shared buffer needs {nbytes / 1e6:,.0f} MB, which could not be allocated ({error.strerror}): "
            "give train(…, buffer=…) fewer samples"
        ) from error
    return memory
