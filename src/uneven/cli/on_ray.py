"""The option ``uneven run --ray N``: workers of an elastic run on a Ray cluster, restarted when lost."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from uneven.errors import ConfigError
from uneven.runtime import launch
from uneven.runtime.installed import need

_CORES = 1.0


@contextmanager
def ray_workers(start: launch.Launch, count: int, directory: Path, said: Mapping[str, Any]) -> Iterator[None]:
    """Run ``count`` additional workers that join, each a task of Ray; their journals are below ``directory``. Raises
    ConfigError if the run is not elastic, or has no address for others, or Ray is missing."""
    if count == 0:
        yield
        return
    if start.elastic is None or start.alone:
        raise ConfigError(
            f"--ray {count}: workers on other machines join an elastic run: say --elastic MIN:MAX and "
            f"--rdzv-endpoint HOST:PORT, an address of this machine that the cluster reaches"
        )
    need("ray", "ray")
    from uneven.runtime.jobs.ray_lines import RayLines

    options = [word for name, value in said.items() if value is not None for word in (name, str(value))]
    target = ["-m", *start.target] if start.module else start.target

    def line(number: int) -> list[str]:
        folder = str((directory / f"ray-{number}").absolute())
        joins = ["--join", start.endpoint, "--nproc", "1", "--run-dir", folder]
        return [sys.executable, "-m", "uneven", "run", *joins, *options, *target]

    def told(what: str) -> None:
        print(f"uneven: {what}", file=sys.stderr)

    lines = RayLines(line, count, cores=_CORES, again=start.max_restarts, told=told)
    try:
        yield
    finally:
        lines.close()
