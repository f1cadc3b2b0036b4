"""``uneven why`` before torchrun: a plain script, started as its user starts it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from uneven.cli.why import python_path

SLOW = 1
DDP = f"""
import os, sys, time, torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

torch.distributed.init_process_group("gloo")
torch.manual_seed(5)
rank = torch.distributed.get_rank()
model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(50 * 4, 8), torch.randn(50 * 4, 2))
for x, y in DataLoader(data, batch_size=4):
    time.sleep(0.2 if rank == {SLOW} else 0.05)
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
if rank == 0:
    weights = torch.cat([one.detach().flatten() for one in model.parameters()])
    open(sys.argv[1], "wb").write(weights.numpy().tobytes())
open(sys.argv[1] + f"-{{rank}}", "w").close()
while not all(os.path.exists(sys.argv[1] + f"-{{one}}") for one in range(2)):  # gloo's end may break an exchange there
    time.sleep(0.01)
torch.distributed.destroy_process_group()
"""
PLAIN = """
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(30):
    optimizer.zero_grad()
    model(torch.ones(4, 2)).sum().backward()
    optimizer.step()
print("trained")
"""


def _launch(*words: object, **options: object) -> subprocess.CompletedProcess[str]:
    done: subprocess.CompletedProcess[str] = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, timeout=200, **options
    )  # type: ignore[call-overload]
    assert done.returncode == 0, done.stderr
    return done


def test_the_slow_worker_of_a_plain_script_is_named_and_its_weights_stay_the_same(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(DDP)
    own = {**os.environ, "TMPDIR": str(tmp_path)}  # torchrun leaves its folder of logs
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2, "train.py")
    _launch(*torchrun, "plain", cwd=tmp_path, env=own)
    why = (sys.executable, "-m", "uneven", "why", "--format", "json", "--run-dir", "run", "--")
    done = _launch(*why, *torchrun, "measured", cwd=tmp_path, env=own)
    found = json.loads(done.stdout)
    assert [(one["rank"], one["cause"]) for one in found["suspects"]] == [(SLOW, "blocked")]
    assert (tmp_path / "plain").read_bytes() == (tmp_path / "measured").read_bytes()


def _plain(folder: Path, lines: str) -> subprocess.CompletedProcess[str]:
    """Run a training of one process as ``uneven why`` starts it, with ``lines`` before it."""
    return _launch(sys.executable, "-c", lines + PLAIN, env={**os.environ, "PYTHONPATH": python_path(folder)})


@pytest.mark.parametrize(
    ("place", "missing"),
    [
        ("utils.data.dataloader._BaseDataLoaderIter", "__next__"),
        ("nn.parallel.DistributedDataParallel", "_post_forward"),
        ("distributed._functional_collectives", "wait_tensor"),
    ],
)
def test_a_torch_that_lacks_something_is_trained_without_the_measurement(
    place: str, missing: str, tmp_path: Path
) -> None:
    lines = f"import torch, torch.distributed._functional_collectives\ndel torch.{place}.{missing}\n"
    done = _plain(tmp_path / "run", lines)
    assert done.stdout == "trained\n"
    (said,) = done.stderr.splitlines()
    assert said.startswith("uneven why: switched off (AttributeError: ")
    assert missing in said


@pytest.mark.alone
def test_the_measurement_starts_in_a_third_of_a_second(tmp_path: Path) -> None:
    lines = "import sys, time, torch\nbefore = {*sys.modules}\nstarted_s = time.process_time()\n"
    lines += "from uneven.why.start import attach\nattach()\ntook_s = time.process_time() - started_s\n"
    lines += "print(took_s <= 0.3 or (took_s, sorted({*sys.modules} - before)))\n"
    assert _plain(tmp_path / "run", lines).stdout == "True\ntrained\n"
