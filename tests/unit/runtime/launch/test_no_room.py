"""A temporary folder without room for another file: the launcher says so, instead of torch."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from uneven_bench.forked.scripts import run_script


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Path]:
    """A file system with three inodes: for its root, the launcher's folder, and the file that holds it."""
    folder = tmp_path / "full"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m,nr_inodes=3", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only root can mount a small file system, and not everywhere")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_worker_whose_report_does_not_fit_leaves_no_half_of_it(tmp_path: Path) -> None:
    """torch's launcher ends with a traceback on half a report."""
    script = tmp_path / "fails.py"
    script.write_text(
        "import resource; from uneven.runtime.world import report_failures\n"
        "report_failures()\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20, 20))\n"
        "raise ValueError('a bad label')\n"
    )
    report = tmp_path / "report.json"
    done = run_script([script], env={**os.environ, "TORCHELASTIC_ERROR_FILE": str(report)})
    assert done.returncode == 1
    assert not report.exists()


@pytest.mark.parametrize("taken", [0, 2])
def test_no_inode_is_left_in_the_temporary_folder(full: Path, taken: int, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('trained')\n")
    for number in range(taken):
        (full / str(number)).touch()
    launcher = tmp_path / "launcher.py"
    launcher.write_text("from uneven.cli import main; main(['run', '--nproc', '1', '--run-dir', 'run', 'train.py'])\n")
    done = run_script([launcher], cwd=tmp_path, env={**os.environ, "TMPDIR": str(full)})
    assert "Traceback" not in done.stderr
    if done.returncode:
        assert f"cannot use {full}" in done.stderr
        assert "No space left on device; free some space there (see `df` and `df -i`)" in done.stderr
    else:  # Python takes another temporary folder where it cannot make a file in this one
        assert taken == 2
        assert "trained" in done.stdout
    assert not list(full.glob("uneven-*"))
