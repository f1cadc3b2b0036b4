"""A folder that its maker leaves behind is removed by who makes the next one, and none that is in use."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from uneven.runtime.temp_dir import TemporaryFolder

_KILLED = """
import os, signal, sys
from uneven.runtime.temp_dir import TemporaryFolder
print(TemporaryFolder("copy-").path, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def names(place: Path) -> list[str]:
    return sorted(one.name for one in place.iterdir())


def test_what_a_killed_process_left_goes_and_what_is_in_use_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    killed = subprocess.run([sys.executable, "-c", _KILLED], capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL
    left = Path(killed.stdout.strip())
    (left / "server.key").write_text("secret")
    assert names(tmp_path) == [left.name]
    (tmp_path / "copy-of-mine").mkdir()  # none of ours, though it is called so

    first = TemporaryFolder("copy-", tmp_path)
    assert names(tmp_path) == sorted(["copy-of-mine", first.path.name])
    second = TemporaryFolder("copy-", tmp_path)
    assert first.path.is_dir()
    assert second.path.stat().st_mode & 0o077 == 0
    first.remove()
    second.remove()
    assert names(tmp_path) == ["copy-of-mine"]


def test_where_there_is_no_room_it_is_told(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="none"):
        TemporaryFolder("copy-", tmp_path / "none")


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk takes root")
def test_on_a_full_disk_nothing_is_left(tmp_path: Path) -> None:
    """Of three inodes the root and the folder take one each, and a file has the third."""
    mount = ["mount", "-t", "tmpfs", "-o", "nr_inodes=3", "tmpfs", str(tmp_path)]
    if subprocess.run(mount, check=False).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        (tmp_path / "file").touch()
        with pytest.raises(OSError, match="No space left"):
            TemporaryFolder("copy-", tmp_path)
        assert names(tmp_path) == ["file"]
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
