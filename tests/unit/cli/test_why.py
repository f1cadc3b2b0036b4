"""``uneven why``: a command is started with the measurement attached, and its end is the end of this command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from uneven.cli import main
from uneven.cli.why import variables


def test_a_command_that_is_missing_leaves_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        main(["why", "--", "no-such-command", "train.py"])
    assert end.value.code == 2
    assert "no-such-command" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_users_own_sitecustomize_runs_as_well(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('mine')\n")
    added = variables(tmp_path / "run")
    path = os.pathsep.join([added["PYTHONPATH"], str(tmp_path)])
    done = subprocess.run(
        [sys.executable, "-c", "print('script')"], env={**os.environ, **added, "PYTHONPATH": path},
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout.split() == ["mine", "script"]
    assert not done.stderr


def test_the_end_of_this_command_ends_the_training(tmp_path: Path) -> None:
    waits = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    why = subprocess.Popen(
        [sys.executable, "-m", "uneven", "why", "--", sys.executable, "-c", waits], cwd=tmp_path,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert why.stdout is not None
    training = int(why.stdout.readline())
    why.send_signal(signal.SIGTERM)
    assert why.wait(timeout=30) != 0
    assert not psutil.pid_exists(training)
    why.stdout.close()
