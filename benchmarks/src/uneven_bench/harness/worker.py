"""A worker on the stage: its task comes in a file, and rank 0's result goes back in another."""

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from uneven.run.start.connect import Connection, connect
from uneven.runtime.world import discover, report_failures
from uneven_bench.harness.stage import OnStage, Said, play

_TASK, _RESULTS = "task.json", "results.json"
_TIMEOUT_S = 300.0


def staged(
    directory: Path, module: str, task: Mapping[str, Any], workers: int, *, said: Said, isolated: bool, **more: Any
) -> Any:
    """Run a task on ``workers`` nodes, and return the result of its rank 0. ``module``: calls :func:`work`;
    ``directory``: for all files of the run; ``more``: see :func:`~uneven_bench.harness.stage.play`, with the errors."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / _TASK).write_text(json.dumps(task))
    play(directory, module, workers, isolated=isolated, said=said, **more)
    return json.loads((directory / _RESULTS).read_text())


@dataclass(frozen=True, slots=True)
class StageWorker:
    """One worker, connected to the others."""

    directory: Path
    task: dict[str, Any]
    rank: int
    stage: OnStage
    connection: Connection

    def gather(self, value: Any) -> list[Any]:
        """Return every worker's value, in the order of the ranks. All call it together."""
        return [json.loads(text) for text in self.connection.transport.gather_text(json.dumps(value))]


def work(play: Callable[[StageWorker], Any], before: Callable[[dict[str, Any], int], None] | None = None) -> None:
    """Be a worker: ``python -m module directory``. ``play`` carries out the task, ``before`` is called with the task
    and this rank before the workers connect."""
    report_failures()
    torch.set_num_threads(1)
    directory, world = Path(sys.argv[1]), discover()
    _print_into(directory / f"output-{world.rank}.txt")
    task = tuples(json.loads((directory / _TASK).read_text()))
    if before is not None:
        before(task, world.rank)
    stage = OnStage(directory, world.rank, task.get("what", ""))
    stage.say("starting", 0.0)
    connection = connect(world, timeout_s=_TIMEOUT_S)
    result = play(StageWorker(directory, task, world.rank, stage, connection))
    if world.rank == 0:
        (directory / _RESULTS).write_text(json.dumps(result))
    connection.close()
    stage.close()


def tuples(told: Any) -> Any:
    """Return JSON with tuples for lists, as a case had them."""
    if isinstance(told, dict):
        return {key: tuples(value) for key, value in told.items()}
    return tuple(map(tuples, told)) if isinstance(told, list) else told


def _print_into(path: Path) -> None:
    """Redirect this worker's output, which would break the progress bar."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(file, stream)
