"""Keeps the memory that one step frees for the next one.

A step frees all of its activations. glibc gives free memory at the end of its heap back to the kernel where there is
more than twice as much of it as the largest block that was freed so far; the next step then gets it again page by page,
each with a fault. Where activations are many and none of them is large that is most of them: a thousand faults in a
step of the benches' network. So the end of the heap is kept, and blocks of up to 32 MiB come from there, which is what
glibc comes to by itself once such a block has been freed; larger ones are mapped and given back, as ever. The largest
amount of memory that is in use at a time does not change; between steps it is not given back.

It concerns the whole process, so it lasts as long as anybody in it trains. Who has set one of glibc's own settings for
this in the environment, ``MALLOC_TRIM_THRESHOLD_`` for instance, has decided otherwise.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Mapping

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # parameters of mallopt, from malloc.h
_LARGEST = 32 << 20
_MOST = 2**31 - 1  # the largest number that mallopt takes

_SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_MAX_")

_lock = threading.RLock()  # a finalizer may run while its own thread holds it
_keepers = 0


def keep_freed_memory(owner: object) -> weakref.finalize | None:
    """From now on, for as long as ``owner`` lives or until what is returned is called. Then what is free is given back.

    Returns:
        None where nothing is changed: the C library is not glibc, or the environment says otherwise.
    """
    global _keepers
    library = None if any(_decides(*pair) for pair in os.environ.items()) else _glibc()
    if library is None:
        return None
    with _lock:
        _keepers += 1
        library.mallopt(_MMAP_THRESHOLD, _LARGEST)
        library.mallopt(_TRIM_THRESHOLD, _MOST)
    release = weakref.finalize(owner, _release, library)
    release.atexit = False
    return release


def _release(library: ctypes.CDLL) -> None:
    global _keepers
    with _lock:
        _keepers -= 1
        if not _keepers:
            library.mallopt(_TRIM_THRESHOLD, 2 * _LARGEST)  # what glibc takes for blocks as large as that
            library.malloc_trim(0)


def left_to_us(environment: Mapping[str, str]) -> dict[str, str]:
    """The same without anything that says otherwise."""
    return {name: value for name, value in environment.items() if not _decides(name, value)}


def _decides(name: str, value: str) -> bool:
    return name in _SETTINGS or (name == "GLIBC_TUNABLES" and "glibc.malloc" in value)


def _glibc() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL(None)
        return library if hasattr(library, "gnu_get_libc_version") and hasattr(library, "mallopt") else None
    except (OSError, TypeError):  # the second is what Windows says
        return None
