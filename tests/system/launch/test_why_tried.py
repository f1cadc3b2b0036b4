"""``uneven why --try``: two short runs of a script with a session, which overwrite nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

SCRIPT = """
import os
import time
from pathlib import Path

import torch
from torch import nn

import uneven

torch.manual_seed(0)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
session = uneven.Session()
model, optimizer = session.setup(model, optimizer)
data = torch.utils.data.TensorDataset(torch.randn(3200, 4), torch.randn(3200, 2))
Path("model.pt").write_text("of the trial")
loader = session.loader(data, global_batch_size=32)
for epoch in range(100):
    for x, y in loader:
        time.sleep(len(x) * (0.002 if os.environ["RANK"] == "1" else 0.0002))
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "model.pt").write_text("trained for a week")
    return tmp_path


pytestmark = pytest.mark.timeout(300)


def trial(project: Path) -> subprocess.Popen[str]:
    (project / "temporary").mkdir()
    why = "uneven why --try --format json --run-dir runs/trial -- uneven run --nproc 2 --balance even train.py"
    return subprocess.Popen(
        [sys.executable, "-m", *why.split()],
        cwd=project, env={**os.environ, "TMPDIR": str(project / "temporary")},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def overwritten(project: Path) -> list[str]:
    """Return the files of a user that a trial has changed or left behind."""
    changed = [] if (project / "model.pt").read_text() == "trained for a week" else ["model.pt"]
    return changed + sorted(path.name for path in (project / "temporary").glob("uneven-try-*"))


def test_a_trial_compares_promise_and_measurement_and_overwrites_nothing(project: Path) -> None:
    with trial(project) as process:
        output, errors = process.communicate()
    made = json.loads(output or errors)
    assert made["command"].startswith("uneven run --nproc 2 --balance even --balance lb-bsp "), errors
    assert made["remedy"]["gain"] > 1.0
    assert made["measured"] > 1.0  # sleep is the work, so no load of this machine matters
    assert overwritten(project) == []
    assert not [one for one in psutil.process_iter(["cmdline"]) if str(project) in " ".join(one.info["cmdline"] or ())]


def test_ctrl_c_ends_a_trial_and_removes_what_it_has_written(project: Path) -> None:
    process = trial(project)
    assert process.stderr is not None
    for line in process.stderr:
        if "run directory" in line:
            break
    workers = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "the trial was stopped" in errors
    gone, alive = psutil.wait_procs(workers, timeout=60)
    assert gone
    assert not alive
    assert overwritten(project) == []
