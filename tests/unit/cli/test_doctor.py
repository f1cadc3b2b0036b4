"""``uneven doctor`` from the outside."""

from __future__ import annotations

import importlib.metadata
import io
import json
import os
import re
import subprocess
import sys

from rich.console import Console

from uneven.cli.doctor import show
from uneven.cli.findings import Finding, Level


def doctor(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "uneven", "doctor", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, env={**os.environ, **environment})


def test_here_several_workers_can_train() -> None:
    done = doctor(COLUMNS="400")  # or it breaks its lines
    assert done.returncode == 0, done.stdout
    version = importlib.metadata.version("torch")
    assert re.search(rf"torch +{re.escape(version.partition('+')[0])}", done.stdout)
    assert "two processes added up over 127.0.0.1" in done.stdout
    assert done.stdout.strip().endswith("Several workers can train here.")
    assert done.stdout.count("→") == 5
    assert done.stderr == ""


def test_a_wrong_interface_is_named_and_the_exit_code_says_so() -> None:
    done = doctor("--json", GLOO_SOCKET_IFNAME="nosuch0")
    answer = json.loads(done.stdout)
    assert done.returncode == 1
    assert answer["works"] is False
    (torch,) = [row for row in answer["findings"] if row["topic"] == "torch"]
    assert torch["found"].startswith(importlib.metadata.version("torch").partition("+")[0])
    missing = [row for row in answer["findings"] if row["level"] == "missing"]
    assert {row["topic"] for row in missing} == {"gloo"}
    assert all("nosuch0" in row["found"] and "GLOO_SOCKET_IFNAME" in row["consequence"] for row in missing)


def test_show_names_what_is_missing() -> None:
    out = io.StringIO()
    found = [Finding("gloo", Level.MISSING, "refused", "[cure]"), Finding("data", Level.NOTE, "old", "fetch")]
    show(found, Console(file=out, width=60))
    lines = [line.split() for line in out.getvalue().splitlines()]
    assert ["missing", "gloo", "refused"] in lines
    assert ["→", "[cure]"] in lines
    assert lines[-1] == ["Several", "workers", "cannot", "train", "here:", "gloo."]
