"""``uneven run`` says so when a script took no part in balancing."""

from __future__ import annotations

from pathlib import Path

import pytest

from uneven.testing.scripts import run_script

SILENT = "print('hello')\n"
TAKES_PART = "import uneven\nuneven.Session().close()\n"


@pytest.mark.parametrize(("script", "told"), [(SILENT, True), (TAKES_PART, False)])
def test_a_script_without_a_session_is_told(script: str, told: bool, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(script)
    done = run_script(["-m", "uneven", "run", "--run-dir", "run", "train.py"], cwd=tmp_path, timeout_s=100)
    assert done.returncode == 0, done.stderr
    assert ("the script made no uneven.Session()" in done.stderr) is told
