"""One training on an emulated cluster, as a user would start it, for the benches that read its journal."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from uneven.cluster.pure.describe.spec import ClusterSpec
from uneven.cluster.pure.describe.write import to_toml
from uneven.errors import LaunchError

DESCRIPTION, OUTPUT, RUN = "cluster.toml", "output.txt", "run"
"""The contents of a recorded run's folder: its description, its output, and the run directory."""

_LIMIT_S = 240.0
_CLEANS_WITHIN_S = 30.0


def emulate(
    spec: ClusterSpec, balance: str, where: Path, data: str, iterations: int, global_batch: int, *more: int
) -> Path:
    """Train the network of ``uneven bench worlds`` on an emulated cluster, and return the run directory. ``where``: a
    folder to make; ``data``: data set, by its name in ``uneven bench``; ``more``: another width of the network. Raises
    LaunchError: the run failed, or took more than four minutes."""
    where.mkdir(parents=True)
    (where / DESCRIPTION).write_text(to_toml(spec), encoding="utf-8")
    command = [
        *(sys.executable, "-m", "uneven", "emulate", "--balance", balance, "--run-dir", str(where / RUN), "--module"),
        *(str(where / DESCRIPTION), "--", "uneven_bench.worlds.worker", str(iterations), str(global_batch), data),
        *map(str, more),
    ]
    with (where / OUTPUT).open("w+") as output:
        emulator = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            code = emulator.wait(_LIMIT_S)
        except subprocess.TimeoutExpired:
            raise LaunchError(f"emulating {spec.name} with {balance} took more than {_LIMIT_S:g} s") from None
        finally:
            _end(emulator)
        if code:
            said = (where / OUTPUT).read_text()[-3000:]
            raise LaunchError(f"emulating {spec.name} with {balance} failed:\n{said}", code)
    return where / RUN


def _end(emulator: subprocess.Popen[bytes]) -> None:
    """Terminate it gently: killed, it would leave its cleaning up to the next one."""
    if emulator.poll() is None:
        emulator.terminate()
        try:
            emulator.wait(_CLEANS_WITHIN_S)
        except subprocess.TimeoutExpired:
            emulator.kill()
            emulator.wait()
