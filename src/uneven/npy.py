"""NumPy's files, read by one thread at a time.

NumPy parses the head of each array with :mod:`ast`, and CPython 3.11 before 3.11.8 keeps the depth of that for the
whole interpreter (python/cpython#106905): of two threads that read at once, one may fail with SystemError, "AST
constructor recursion depth mismatch". What several threads of a program read, they read through here.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from threading import RLock
from typing import IO, Any

import numpy as np
import numpy.typing as npt

_reading = RLock()


def load_array(path: Path, *, mapped: bool = False) -> npt.NDArray[Any]:
    """The array of an ``.npy`` file; ``mapped`` leaves it on disk until it is used, read-only.

    Raises:
        OSError, ValueError: as ``numpy.load`` does.
    """
    with _reading:
        found: npt.NDArray[Any] = np.load(path, mmap_mode="r" if mapped else None, allow_pickle=False)
    return found


def load_arrays(file: Path | IO[bytes], names: Iterable[str] | None = None) -> dict[str, npt.NDArray[Any]]:
    """The arrays of an ``.npz`` file by name, or those of them that are named.

    Raises:
        KeyError: one that is named is not there.
        OSError, ValueError, BadZipFile: as ``numpy.load`` does.
    """
    with (
        _reading,
        file.open("rb") if isinstance(file, Path) else nullcontext(file) as opened,  # NumPy leaves a damaged one open
        np.load(opened, allow_pickle=False) as held,
    ):
        return {name: held[name] for name in (held.files if names is None else names)}
