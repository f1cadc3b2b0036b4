"""A search for TensorBoard: each trial's curves, and its settings beside its best metric (the hparams page)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from uneven.errors import ConfigError, access
from uneven.search.result import TrialRow
from uneven.search.space import Plain


def write(rows: Sequence[TrialRow], events: Sequence[Mapping[str, Any]], metric: str, folder: Path) -> int:
    """Write it; open it with ``tensorboard --logdir FOLDER``. What an earlier call has written there is replaced.

    Step is how much a trial has been trained, wall time is that of its report.

    Returns:
        How many values of curves were written.

    Raises:
        ConfigError: TensorBoard is not installed, or the folder cannot be written.
    """
    try:
        from torch.utils.tensorboard.summary import hparams, scalar
        from torch.utils.tensorboard.writer import FileWriter
    except ImportError as error:
        raise ConfigError(f"TensorBoard is not installed ({error}): pip install 'uneven[tensorboard]'") from error
    reports: dict[int, list[Mapping[str, Any]]] = {}
    for event in events:
        if event["event"] == "report":
            reports.setdefault(event["trial"], []).append(event)
    written = 0
    for row in rows:
        home = folder / f"trial-{row.number:05d}"
        with access(f"write to {home} (name another folder)"):
            home.mkdir(parents=True, exist_ok=True)
            for old in home.glob("events.out.tfevents.*"):
                old.unlink()
            writer = FileWriter(str(home))
        best = {f"best/{metric}": row.metric} if math.isfinite(row.metric) else {}
        for summary in hparams({name: _said(value) for name, value in row.params.items()}, best):
            writer.add_summary(summary)
        for name, value in best.items():
            writer.add_summary(scalar(name, value), round(row.best_t))
        for event in reports.get(row.number, ()):
            values = {metric: event["metric"], **event.get("metrics", {})}
            for name, value in values.items():
                writer.add_summary(scalar(name, value), round(event["t"]), event["at_s"])
            written += len(values)
        writer.close()
    return written


def _said(value: Plain) -> int | float | str | bool:
    return "none" if value is None else value
