"""NumPy files, read by one thread at a time.

NumPy parses the header of each array with :mod:`ast`, and CPython 3.11 before 3.11.8 has one recursion depth for the
whole interpreter (python/cpython#106905): with two concurrent readers, one may fail with SystemError, "AST constructor
recursion depth mismatch". Code that may run in several threads must read files with these functions.
"""

from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from threading import RLock
from typing import IO, Any

import numpy as np
import numpy.typing as npt

_reading = RLock()


def load_array(path: Path, *, mapped: bool = False) -> npt.NDArray[Any]:
    """Return an ``.npy`` file's array, in its shape and dtype; ``mapped`` leaves it on disk. Raises as
    ``numpy.load``."""
    with _reading:
        found: npt.NDArray[Any] = np.load(path, mmap_mode="r" if mapped else None, allow_pickle=False)
    return found


def load_arrays(file: Path | IO[bytes], names: Iterable[str] | None = None) -> dict[str, npt.NDArray[Any]]:
    """Return the named arrays of an ``.npz`` file, in their shapes and dtypes; all, or those in ``names``. Raises
    KeyError for an unknown name, and the errors of ``numpy.load``."""
    with (
        _reading,
        file.open("rb") if isinstance(file, Path) else nullcontext(file) as opened,  # NumPy leaves a damaged file open
        np.load(opened, allow_pickle=False) as held,
    ):
        return {name: held[name] for name in (held.files if names is None else names)}
