"""One training on an emulated cluster, as a user would start it, for the benches that read its journal."""

from pathlib import Path

from uneven.cluster.pure.describe.spec import ClusterSpec
from uneven.cluster.pure.describe.write import to_toml
from uneven_bench.harness.program import program

DESCRIPTION, RUN = "cluster.toml", "run"
"""The contents of a recorded run's folder: its description, and the run directory."""

_LIMIT_S = 240.0


def emulate(spec: ClusterSpec, balance: str, where: Path, data: str, iterations: int, batch: int, *more: int) -> Path:
    """Train the network of ``uneven bench worlds`` on an emulated cluster, and return the run directory. ``where``: a
    folder to make; ``data``: data set, by its name in ``uneven bench``; ``more``: another width of the network. Raises
    LaunchError: the run failed, or took more than four minutes."""
    where.mkdir(parents=True)
    (where / DESCRIPTION).write_text(to_toml(spec), encoding="utf-8")
    words = ("uneven", "emulate", "--balance", balance, "--run-dir", where / RUN, "--module", where / DESCRIPTION, "--")
    program(*words, "uneven_bench.worlds.worker", iterations, batch, data, *more, timeout_s=_LIMIT_S)
    return where / RUN
