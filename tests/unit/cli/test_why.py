"""``uneven why``: a command is started with the measurement attached, and its end is the end of this command."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from uneven import journal
from uneven.cli import main
from uneven.cli.why import python_path


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
    path = os.pathsep.join([python_path(tmp_path / "run"), str(tmp_path)])
    done = subprocess.run(
        [sys.executable, "-c", "print('script')"], env={**os.environ, "PYTHONPATH": path},
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


@pytest.mark.parametrize(
    ("words", "way_out"), [("--environment", "runs/NAME"), ("--try", "--try -- "), ("", "no run in")]
)
def test_without_a_target_the_error_says_what_to_name(
    words: str, way_out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        main(["why", *words.split()])
    assert end.value.code == 2
    assert way_out in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.rest
def test_one_variable_attaches_a_worker_on_another_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "runs" / "mine"
    with pytest.raises(SystemExit):
        main(["why", "--environment", str(run)])
    (line,) = capsys.readouterr().out.splitlines()
    name, value = shlex.split(line.removeprefix("export "))[0].split("=", 1)
    trains = """
import torch
layer = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
for _ in range(5):
    layer(torch.ones(2)).sum().backward()
    optimizer.step()
"""
    launcher = {"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
    subprocess.run([sys.executable, "-c", trains], env={**os.environ, **launcher, name: value}, timeout=60, check=True)
    (rank,) = journal.read(run).ranks
    assert rank == 3
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        main(["why"])
    assert not end.value.code
    assert "uneven why: mine" in capsys.readouterr().out


def test_a_signal_that_ends_the_command_gives_the_exit_code_of_a_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        main(["why", "--", "sh", "-c", "kill -9 $$"])
    assert end.value.code == 128 + signal.SIGKILL
    assert "the command was killed by SIGKILL" in capsys.readouterr().err
