"""Functions of a notebook run on workers; its process has no file that they could import."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from uneven.runtime.jobs.processes import import_path

pytestmark = pytest.mark.timeout(300)

CELL = """
import os, threading, torch, uneven

class Net(torch.nn.Linear):
    pass

data = torch.utils.data.TensorDataset(torch.arange(64.0).reshape(16, 4) / 64)
torch.manual_seed(0)
model = Net(4, 1)

def train(rate):
    from uneven import Session
    with Session() as session:
        mine, optimizer = session.setup(model, torch.optim.SGD(model.parameters(), lr=rate))
        for (x,) in session.loader(data, global_batch_size=8):
            mine(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return mine, session.world_size, session.next_shares

before = model.weight.clone()
"""

LAUNCHES = """
trained, workers, shares = uneven.notebook_launch(train, (0.1,), nproc=2, options="--balance static:shares=3/1")
alone, _, _ = train(0.1)
assert type(trained) is Net
assert torch.allclose(trained.weight, alone.weight) and not torch.equal(before, alone.weight)
assert os.environ.get("RANK") is None
print("workers", workers, *shares)
"""

FAILS = """
def fails():
    raise ValueError("no such data")

try:
    uneven.notebook_launch(fails, nproc=1)
except uneven.TrainingError as error:
    print("raised", error)
"""

WAITS = """
def waits():
    print("process", os.getpid(), flush=True)
    threading.Event().wait()

try:
    uneven.notebook_launch(waits, nproc=2)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def notebook(folder: Path) -> subprocess.Popen[str]:
    """A Python that reads its program from a pipe, as a kernel does: no module and no file holds its functions."""
    env = {**os.environ, "PYTHONPATH": import_path(), "OMP_NUM_THREADS": "1"}
    line = [sys.executable, "-u", "-c", "import sys; exec(compile(sys.stdin.read(), '<cell>', 'exec'))"]
    return subprocess.Popen(
        line, cwd=folder, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_a_function_trains_on_unequal_shares_as_here(tmp_path: Path) -> None:
    with notebook(tmp_path) as kernel:
        printed, errors = kernel.communicate(CELL + LAUNCHES + FAILS, timeout=250)
    assert kernel.returncode == 0, errors
    assert "workers 2 6 2" in printed
    assert "uneven: 2 iterations" in printed  # the last line of the run
    assert "ValueError: no such data" in printed
    assert "raised notebook_launch(fails): the run ended with exit code 1" in printed


def test_an_interrupt_ends_the_workers(tmp_path: Path) -> None:
    with notebook(tmp_path) as kernel:
        assert kernel.stdin is not None
        assert kernel.stdout is not None
        kernel.stdin.write(CELL + WAITS)
        kernel.stdin.close()
        pids: list[int] = []
        for line in kernel.stdout:
            pids += [int(line.split()[1])] if line.startswith("process") else []
            if len(pids) == 2:
                break
        kernel.send_signal(signal.SIGINT)
        rest = kernel.stdout.read()
        assert kernel.wait(200) == 0, rest
    assert "interrupted" in rest
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.skipif(find_spec("nbclient") is None or find_spec("ipykernel") is None, reason="needs nbclient, ipykernel")
def test_a_real_kernel(tmp_path: Path) -> None:
    import nbformat
    from nbclient import NotebookClient

    cells = [nbformat.v4.new_code_cell(text) for text in (CELL, LAUNCHES)]
    book = nbformat.v4.new_notebook(cells=cells)
    client = NotebookClient(book, kernel_name="python3", timeout=250, resources={"metadata": {"path": str(tmp_path)}})
    client.execute(env={**os.environ, "PYTHONPATH": import_path()})
    printed = "".join(one.get("text", "") for one in book.cells[1].outputs)
    assert "workers 2 6 2" in printed
    assert "uneven: 2 iterations" in printed
