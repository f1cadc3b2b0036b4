"""The tracker for Weights & Biases: offline in a folder, for ``wandb sync``, or online if WANDB_MODE is set so."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import wandb

from uneven.errors import access
from uneven.journal.report.pure.points import LoggedValue, Plain
from uneven.journal.report.track.tracker import TrackedRun, Tracker, by_step


class WeightsAndBiases(Tracker):
    """A folder for runs; their project is WANDB_PROJECT, or ``uneven``."""

    def __init__(self, where: str) -> None:
        self._folder = Path(where)

    def begin(self, name: str, settings: Mapping[str, Plain], *, group: str = "") -> TrackedRun:
        with access(f"write to {self._folder} (another folder can be named with --log-to)"):
            self._folder.mkdir(parents=True, exist_ok=True)
        run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "uneven"),
            mode=os.environ.get("WANDB_MODE", "offline"),
            name=name,
            group=group or None,
            config=dict(settings),
            dir=str(self._folder),
            reinit="create_new",  # other runs may still be open
            settings=wandb.Settings(silent=True, console="off"),
        )
        return _WandbRun(run)


class _WandbRun(TrackedRun):
    def __init__(self, run: Any) -> None:
        self._run = run

    def add(self, points: Sequence[LoggedValue]) -> None:
        for step, together in by_step(points):
            self._run.log({point.name: point.value for point in together}, step=step)

    def end(self, results: Mapping[str, float]) -> None:
        self._run.summary.update(dict(results))
        self._run.finish()
