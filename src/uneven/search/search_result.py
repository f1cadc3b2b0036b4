"""Give access to the results of a search."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from uneven.errors import ConfigError, TrainingError, access
from uneven.journal.report.track import LoggedValue, Tracker, tracker
from uneven.search import checkpoints, needed_optuna
from uneven.search.pure.core import SearchCore
from uneven.search.pure.space import Plain
from uneven.search.pure.trial_records import TrialRecord
from uneven.search.search_events import read_events


@dataclass(frozen=True, slots=True)
class TrialRow:
    """One row of the table of trials."""

    number: int
    params: Mapping[str, Plain]
    metric: float  # the best one; NaN if there is none
    best_t: float  # training at the best metric
    t: float  # training in all
    status: str  # "terminated" or "error"; during a search also "pending", "running", "paused"
    why: str  # the reason for its end
    # the best state, or the newest if that was not kept, for `torch.load(…, weights_only=True)`; or None
    checkpoint: Path | None


class SearchResult:
    """The result of :func:`uneven.search.run`.

    Attributes:
        rows: the trials, the best first.
        directory: of the search.
    """

    def __init__(self, core: SearchCore, directory: Path) -> None:
        self.directory = directory
        self._core = core
        self._terms = core.terms
        ordered = sorted(core.trials, key=lambda one: (-one.best if one.best == one.best else float("inf"), one.number))
        self.rows = tuple(_row(one, self._terms.sign, directory) for one in ordered)

    @property
    def metric(self) -> str:
        """The name of the optimized metric."""
        return self._terms.metric

    @property
    def best(self) -> TrialRow:
        """The best trial.

        Raises:
            TrainingError: no trial has reported a metric.
        """
        if not self.rows or self.rows[0].metric != self.rows[0].metric:
            why = f"; trial {self.rows[0].number}: {_last(self.rows[0].why)}" if self.rows else ""
            raise TrainingError(f"no trial has reported {self.metric}{why}")
        return self.rows[0]

    @property
    def failed(self) -> tuple[TrialRow, ...]:
        """The trials that crashed or diverged."""
        return tuple(row for row in self.rows if row.status == "error")

    def events(self) -> list[dict[str, Any]]:
        """Return all events, in order."""
        return read_events(self.directory)

    def frame(self) -> Any:
        """Return a pandas DataFrame with one row per trial.

        Raises:
            ConfigError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:
            raise ConfigError("result.frame() needs pandas: pip install pandas; or take result.rows") from error
        return pandas.DataFrame(
            [
                {
                    "trial": row.number,
                    **row.params,
                    self.metric: row.metric,
                    "best_t": row.best_t,
                    "t": row.t,
                    "status": row.status,
                    "why": row.why,
                }
                for row in self.rows
            ]
        )

    def report(self, path: str | Path) -> None:
        """Write an HTML page with all curves, the stops and their reasons, and the devices over time; needs no network.

        Raises:
            ConfigError: it cannot be written there.
        """
        from uneven.search.search_page import page

        with access(f"write the report {path}"):
            Path(path).write_text(page(self.rows, self.events(), self._terms, self.directory), encoding="utf-8")

    def tensorboard(self, folder: str | Path) -> int:
        """Write curves and settings for TensorBoard, which shows the settings on its hparams page.

        Returns:
            The number of values written.

        Raises:
            ConfigError: TensorBoard is not installed, or the folder cannot be written.
        """
        return self.track(tracker(f"tensorboard:{folder}"))

    def optuna(self, storage: Any = None, study_name: str | None = None) -> Any:
        """Write the trials into a new Optuna study, for its dashboard and plots, and return the study.

        A trial is COMPLETE if its function returned, or it was trained to the end; PRUNED if it was stopped before.

        Args:
            storage: such as "sqlite:///study.db"; by default in memory.
            study_name: by default the name of the search's directory.

        Raises:
            ConfigError: Optuna is not installed, or the storage cannot be written.
        """
        name = study_name or self.directory.resolve().name
        return needed_optuna().to_study(self._core, self.events(), storage, name)

    def track(self, tool: Tracker) -> int:
        """Log each trial as a run of a tracking tool: its curves, settings and best metric.

        The step is the trial's training, and the time that of its report.

        Returns:
            The number of values written.

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
