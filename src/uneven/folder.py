"""A temporary folder removed by its owner or, if that was killed, by the next process that makes one."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

_HELD = "held"
"""A file that the maker keeps locked. The kernel lets go of it when the maker and all its children have ended."""


SHARD_FOLDER = "uneven-copy-"
"""Beginning of the names of folders with the keys and sockets of a parameter server in rank 0."""


class TemporaryFolder:
    """Only its owner can enter it.

    Args:
        prefix: its name begins so; folders there of such a name whose makers have been killed are removed first.
        place: where it is to be; by default where temporary files are.

    Attributes:
        path: where it is.

    Raises:
        OSError: there is no room for it, or no right to make it.
    """

    def __init__(self, prefix: str, place: Path | None = None) -> None:
        place = Path(place or tempfile.gettempdir()).absolute()
        remove_left(prefix, place)
        made = Path(tempfile.mkdtemp(prefix=f".{prefix}", dir=place))  # by another name until it is held
        try:
            self._held = os.open(made / _HELD, os.O_CREAT | os.O_RDWR, 0o600)
        except OSError:
            made.rmdir()
            raise
        with suppress(OSError):  # a disk without locks: it stays there if its maker is killed
            fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self.path = made.rename(place / made.name.removeprefix("."))

    def remove(self) -> None:
        """Remove it, with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._held)


def remove_left(prefix: str, place: Path | None = None) -> None:
    """Remove the folders with names of such a beginning whose makers have ended without removing them."""
    for folder in Path(place or tempfile.gettempdir()).glob(f"{prefix}*"):
        _remove_if_left(folder)


def _remove_if_left(folder: Path) -> None:
    """Unless its maker lives, or it is somebody else's."""
    with suppress(OSError), (folder / _HELD).open("r+") as held:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
