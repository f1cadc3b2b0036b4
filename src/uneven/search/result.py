"""What a search has found."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from uneven.errors import ConfigError, TrainingError, access
from uneven.report.track import LoggedValue, Tracker, tracker
from uneven.search import checkpoints, needed_optuna
from uneven.search.core import SearchCore
from uneven.search.events import read_events
from uneven.search.records import TrialRecord
from uneven.search.space import Plain


@dataclass(frozen=True, slots=True)
class TrialRow:
    """One trial.

    Attributes:
        metric: its best one; not a number if it has none.
        best_t: how much it had been trained then.
        t: how much it was trained in all.
        status: "terminated" or "error"; while a search runs, also "pending", "running", "paused".
        why: what ended it.
        checkpoint: its state when it was best, for ``torch.load(…, weights_only=True)``; if that was not kept, the
            newest; None without one.
    """

    number: int
    params: Mapping[str, Plain]
    metric: float
    best_t: float
    t: float
    status: str
    why: str
    checkpoint: Path | None


class SearchResult:
    """What :func:`uneven.search.run` returns.

    Attributes:
        rows: the trials, the best first.
        directory: where it lies.
    """

    def __init__(self, core: SearchCore, directory: Path) -> None:
        self.directory = directory
        self._core, self._terms = core, core.terms
        ordered = sorted(core.trials, key=lambda one: (-one.best if one.best == one.best else float("inf"), one.number))
        self.rows = tuple(_row(one, self._terms.sign, directory) for one in ordered)

    @property
    def metric(self) -> str:
        """What was optimized."""
        return self._terms.metric

    @property
    def best(self) -> TrialRow:
        """The best trial.

        Raises:
            TrainingError: none has reported a metric.
        """
        if not self.rows or self.rows[0].metric != self.rows[0].metric:
            why = f"; trial {self.rows[0].number}: {_last(self.rows[0].why)}" if self.rows else ""
            raise TrainingError(f"no trial has reported {self.metric}{why}")
        return self.rows[0]

    @property
    def failed(self) -> tuple[TrialRow, ...]:
        """Trials that crashed or diverged."""
        return tuple(row for row in self.rows if row.status == "error")

    def events(self) -> list[dict[str, Any]]:
        """All that has happened, in order."""
        return read_events(self.directory)

    def frame(self) -> Any:
        """A row for each trial, as a pandas DataFrame.

        Raises:
            ConfigError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:
            raise ConfigError("result.frame() needs pandas: pip install pandas; or take result.rows") from error
        return pandas.DataFrame([
            {"trial": row.number, **row.params, self.metric: row.metric, "best_t": row.best_t, "t": row.t,
             "status": row.status, "why": row.why} for row in self.rows
        ])  # fmt: skip

    def report(self, path: str | Path) -> None:
        """Write a page with every curve, who was stopped when and why, and who had which device; needs no network.

        Raises:
            ConfigError: it cannot be written there.
        """
        from uneven.search.page import page

        with access(f"write the report {path}"):
            Path(path).write_text(page(self.rows, self.events(), self._terms, self.directory), encoding="utf-8")

    def tensorboard(self, folder: str | Path) -> int:
        """Write curves and settings for TensorBoard, which shows the settings on its hparams page.

        Returns:
            How many values of curves were written.

        Raises:
            ConfigError: TensorBoard is not installed, or the folder cannot be written.
        """
        return self.track(tracker(f"tensorboard:{folder}"))

    def optuna(self, storage: Any = None, study_name: str | None = None) -> Any:
        """Write the trials into a new study of Optuna, for its dashboard and its plots; return the study.

        A trial is COMPLETE if its function returned, or it was trained to the end; PRUNED if it was stopped before.

        Args:
            storage: such as "sqlite:///study.db"; by default in memory.
            study_name: by default the name of the search's directory.

        Raises:
            ConfigError: Optuna is not installed, or it cannot be written there.
        """
        name = study_name or self.directory.resolve().name
        return needed_optuna().to_study(self._core, self.events(), storage, name)

    def track(self, tool: Tracker) -> int:
        """Give a tool a run for each trial: its curves, its settings and its best metric.

        Step is how much a trial has been trained, and the time that of its report.

        Returns:
            How many values of curves were written.

        Raises:
            ConfigError: the tool cannot write.
        """
        reports: dict[int, list[LoggedValue]] = {}
        for event in self.events():
            if "metric" in event:
                values = {self.metric: event["metric"], **event.get("metrics", {})}
                at = (round(event["t"]), event["at_s"])
                reports.setdefault(event["trial"], []).extend(
                    LoggedValue(name, value, *at) for name, value in values.items()
                )
        for row in self.rows:
            run = tool.begin(f"trial-{row.number:05d}", row.params, group=self.directory.resolve().name)
            run.add(reports.get(row.number, ()))
            run.end({f"best/{self.metric}": row.metric} if math.isfinite(row.metric) else {})
        return sum(map(len, reports.values()))

    def __str__(self) -> str:
        lines = [f"{'trial':>5} {self.metric:>12} {'at':>6} {'of':>6}  {'status':<11} settings"]
        for row in self.rows:
            metric = f"{row.metric:.6g}" if row.metric == row.metric else "–"
            params = " ".join(f"{name}={_short(value)}" for name, value in row.params.items())
            lines.append(f"{row.number:>5} {metric:>12} {row.best_t:>6g} {row.t:>6g}  {row.status:<11} {params}")
        if self.failed:
            lines.append(f"{len(self.failed)} of {len(self.rows)} trials failed:")
            lines += [f"  trial {row.number}: {_last(row.why)}" for row in self.failed]
        return "\n".join(lines)


def _last(why: str) -> str:
    return next((line for line in reversed(why.splitlines()) if line.strip()), "no reason is known")


def _short(value: Plain) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _row(one: TrialRecord, sign: float, directory: Path) -> TrialRow:
    saved = checkpoints.saved_in(checkpoints.folder_of(directory, one.number))
    best = [state for state in saved if state.life == one.life and state.t == one.best_t]
    checkpoint = (best or saved)[-1].path if saved else None
    return TrialRow(one.number, one.params, sign * one.best, one.best_t, one.t, one.status.value, one.why, checkpoint)
