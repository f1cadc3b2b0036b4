"""A temporary folder, removed by its owner or, if that was killed, by the next process that makes one."""

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from uneven.runtime.system import WINDOWS, lock

_HELD = "held"
"""A file that the owner locks. The kernel releases the lock when the owner and all its children have ended."""


SHARD_FOLDER = "uneven-copy-"  # the start of the names of folders with keys and sockets of a parameter server in rank 0


class TemporaryFolder:
    """A temporary folder that only its owner can enter, at ``path``. Raises OSError without space or permission.

    Args:
        prefix: start of its name; folders with such a name whose owners were killed are removed first.
        place: parent folder; by default that of temporary files.
    """

    def __init__(self, prefix: str, place: Path | None = None) -> None:
        place = Path(place or tempfile.gettempdir()).absolute()
        remove_left(prefix, place)
        if WINDOWS:  # it cannot rename a folder with an open file, so the folder stays if its owner is killed
            self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=place))
            self._held = -1
            return
        # The final name comes after the lock, so that another process does not remove it.
        made = Path(tempfile.mkdtemp(prefix=f".{prefix}", dir=place))
        try:
            self._held = os.open(made / _HELD, os.O_CREAT | os.O_RDWR, 0o600)
        except OSError:
            made.rmdir()
            raise
        with suppress(OSError):  # a disk without locks: the folder stays if its owner is killed
            lock(self._held)
        self.path = made.rename(place / made.name.removeprefix("."))

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        if self._held >= 0:
            os.close(self._held)


def remove_left(prefix: str, place: Path | None = None) -> None:
    for folder in Path(place or tempfile.gettempdir()).glob(f"{prefix}*"):
        _remove_if_left(folder)


def _remove_if_left(folder: Path) -> None:
    # An exclusive lock succeeds only if the owner has ended. Other users' folders raise OSError.
    with suppress(OSError), (folder / _HELD).open("r+") as held:
        lock(held)
        shutil.rmtree(folder, ignore_errors=True)
