"""A setting of glibc's heap that keeps the memory freed by one step for the next one.

A step frees all its activations, and glibc then returns the free end of its heap to the kernel. The next step gets it
back page by page, with a page fault for each: about a thousand in a step of the benches' network. The setting keeps
that memory between steps; the peak does not change. If the user has set one of glibc's own variables, for example
``MALLOC_TRIM_THRESHOLD_``, nothing changes.
"""

import ctypes
import os
import threading
import weakref

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # parameters of mallopt, from malloc.h
_LARGEST = 32 << 20  # the size up to which glibc itself raises the threshold; larger blocks are always mapped
_MOST = 2**31 - 1  # the largest number that mallopt takes

_SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_MAX_")

_lock = threading.RLock()  # a finalizer may run while its own thread holds it
_keepers = 0  # the setting concerns the whole process, so it lasts until the last session has released it


def keep_freed_memory(owner: object) -> weakref.finalize | None:
    """Keep freed memory until ``owner`` is collected or the returned finalizer is called.

    Returns:
        None if nothing changes: the C library is not glibc, or the environment sets glibc's allocator.
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
            library.mallopt(_TRIM_THRESHOLD, 2 * _LARGEST)  # glibc's own rule: twice the threshold for mapped blocks
            library.malloc_trim(0)


def _decides(name: str, value: str) -> bool:
    return name in _SETTINGS or (name == "GLIBC_TUNABLES" and "glibc.malloc" in value)


def _glibc() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL(None)
        return library if hasattr(library, "gnu_get_libc_version") and hasattr(library, "mallopt") else None
    except (OSError, TypeError):  # Windows raises TypeError
        return None
