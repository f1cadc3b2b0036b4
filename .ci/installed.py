"""Try an installed uneven without extras: import all of it, train a step, cut a graph.

Usage: python -I .ci/installed.py compiled|plain
"""

import importlib
import pkgutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

import uneven
from uneven.errors import ConfigError
from uneven.graph import native
from uneven.graph.adjacency import Adjacency
from uneven.graph.edges import edges_of
from uneven.graph.pure.cut.expand import expand

OF_EXTRAS = {
    *("accelerate", "av", "hypothesis", "lightning", "lightning_fabric", "mlflow", "numba", "opentelemetry", "optuna"),
    *("pandas", "prometheus_client", "pytest", "ray", "scipy", "tensorboard", "transformers", "wandb"),
}

SCRIPT = """
import torch, uneven
with uneven.Session() as session:
    model = torch.nn.Linear(4, 1)
    model, optimizer = session.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for (x,) in session.loader(torch.utils.data.TensorDataset(torch.ones(16, 4)), global_batch_size=8):
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def imports() -> list[str]:
    """Import every module; return those that need an extra."""
    left_out = []
    for found in pkgutil.walk_packages(uneven.__path__, "uneven.", onerror=lambda name: None):  # noted below
        if found.name.endswith(("__main__", "_native")):  # a program, and a library without Python
            continue
        try:
            importlib.import_module(found.name)
        except ModuleNotFoundError as error:
            if str(error.name).partition(".")[0] not in OF_EXTRAS:
                raise
            left_out.append(found.name)
        except ConfigError as error:
            if "pip install" not in str(error):
                raise
            left_out.append(found.name)
    return left_out


def graph(compiled: bool) -> None:
    """Use the compiled loops, or their absence."""
    assert (native.library() is not None) is compiled
    source, target = np.random.default_rng(0).integers(0, 60, (2, 400))
    edges = edges_of(torch.tensor(np.stack([source, target])), 60)
    given = edges, (0.75, 0.25), np.arange(60), 1.0
    found = native.expanded(*given)
    assert (found is not None) is compiled
    for mine, theirs in zip(found or (), expand(*given), strict=False):
        assert np.array_equal(mine, theirs)
    sums = native.sums(Adjacency.of(edges).into, torch.ones(60, 64))
    if sums is not None:  # the processor has such vectors
        assert torch.equal(sums[:, 0], torch.tensor(np.bincount(edges.target, minlength=60)).float())


def train() -> None:
    """Train on two workers, in an empty folder."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "train.py").write_text(SCRIPT)
        line = [sys.executable, "-m", "uneven", "run", "--nproc", "2", "train.py"]
        done = subprocess.run(line, cwd=folder, stderr=subprocess.PIPE, text=True)
        assert done.returncode == 0, done.stderr
        assert "uneven: 2 iterations" in done.stderr, done.stderr


if __name__ == "__main__":
    assert Path(uneven.__file__).is_relative_to(sys.prefix), uneven.__file__
    left_out = imports()
    graph(sys.argv[1] == "compiled")
    train()
    print(f"uneven {uneven.__version__}, {sys.argv[1]}: works; left out without extras: {', '.join(left_out)}")
