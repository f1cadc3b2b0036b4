"""``uneven run`` says so when a script took no part in balancing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SILENT = "print('hello')\n"
TAKES_PART = "import uneven\nuneven.Session().close()\n"


@pytest.mark.parametrize(("script", "told"), [(SILENT, True), (TAKES_PART, False)])
def test_a_script_without_a_session_is_told(script: str, told: bool, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(script)
    command = [sys.executable, "-m", "uneven", "run", "--run-dir", "run", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert ("the script made no uneven.Session()" in done.stderr) is told
