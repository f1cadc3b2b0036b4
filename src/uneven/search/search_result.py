"""Give access to the results of a search."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from uneven.errors import ConfigError, TrainingError, access
from uneven.journal.report.page import Page, PageTable
from uneven.journal.report.pure.draw import Figure, colour, layout, line
from uneven.journal.report.pure.figures import Span, gantt
from uneven.journal.report.track import LoggedValue, Tracker, tracker
from uneven.search import checkpoints, needed_optuna
from uneven.search.pure.core import SearchCore
from uneven.search.pure.space import Plain
from uneven.search.pure.trial_records import SearchTerms, TrialRecord
from uneven.search.search_events import read_events

_MOST_CURVES = 100
_MOST_NAMED = 12  # curves in a legend; with more, only the curve under the pointer shows its name

_FEWEST_FOR_IMPORTANCE = 8
_WIDE = 30  # ratio of an axis' largest to its smallest value from which it is logarithmic


def page(rows: "Sequence[TrialRow]", events: Sequence[Mapping[str, Any]], terms: SearchTerms, directory: Path) -> str:
    """Return the report as HTML that needs no network; `rows` has the best trial first."""
    reports = [event for event in events if "metric" in event]
    took_s = events[-1]["at_s"] - events[0]["at_s"] if events else 0.0
    best = rows[0].metric if rows else math.nan
    made = Page("Search", f"{len(rows)} trials, in {directory}.")
    made.cards(
        [
            (f"{best:.6g}", f"best {terms.metric}"),
            (str(len(rows)), "trials"),
            (f"{took_s:,.0f} s", "from first to last"),
            (f"{len(reports):,}", "reports"),
            (str(sum(row.status == "error" for row in rows)), "failed"),
        ]
    )
    made.table("Trials", _trials(rows, terms))
    made.figure(f"{terms.metric} by training", _curves(rows, reports, terms))
    if len(rows) > 1 and _numbers(rows):
        made.figure("Settings and results", _parallel(rows, terms), "One line for each trial.")
    mattered = importance(rows)
    if mattered:
        table = PageTable(("setting", "rank correlation"), [(name, f"{share:+.2f}") for name, share in mattered])
        made.table("Settings that matter", table)
    spans = stretches(events)
    if spans:
        devices = 1 + max(number for span in spans for number in span.devices)
        made.figure("Devices over time", gantt(spans, devices, max(span.end_s for span in spans)))
    return made.html()


def _trials(rows: "Sequence[TrialRow]", terms: SearchTerms) -> PageTable:
    cells = []
    for row in rows:
        params = " ".join(f"{name}={_short(value)}" for name, value in row.params.items())
        metric = f"{row.metric:.6g}" if row.metric == row.metric else "–"
        why = row.why.splitlines()[-1] if row.why else ""
        cells.append((str(row.number), metric, f"{row.best_t:g}", f"{row.t:g}", params, f"{row.status}: {why}"))
    return PageTable(("trial", terms.metric, "best at", "trained", "settings", ""), cells, frozenset({4, 5}))


def _curves(rows: "Sequence[TrialRow]", reports: Sequence[Mapping[str, Any]], terms: SearchTerms) -> Figure:
    shown = [row.number for row in rows[:_MOST_CURVES]]
    points: dict[int, list[tuple[float, float]]] = {}
    for event in reports:
        points.setdefault(event["trial"], []).append((event["t"], float(event["metric"])))
    data = [
        line(
            [t for t, _ in points[number]],
            [metric for _, metric in points[number]],
            f"trial {number}",
            colour(place, len(shown)),
            marks=True,
        )
        for place, number in enumerate(shown)
        if number in points
    ]
    few = {"showlegend": len(data) <= _MOST_NAMED, "hovermode": "closest"}
    return {"data": data, "layout": layout(terms.metric, x_title=terms.time_attr.replace("_", " ")) | few}


def _numbers(rows: "Sequence[TrialRow]") -> dict[str, list[float]]:
    """Return the settings that differ, as numbers; a word becomes its index among the sorted words."""
    found = {}
    for name in rows[0].params:
        values = [row.params.get(name) for row in rows]
        if len({repr(value) for value in values}) < 2:
            continue
        if all(isinstance(value, int | float) for value in values):
            found[name] = [float(value) for value in values if isinstance(value, int | float)]
        else:
            words = sorted({str(value) for value in values})
            found[name] = [float(words.index(str(value))) for value in values]
    return found


def _parallel(rows: "Sequence[TrialRow]", terms: SearchTerms) -> Figure:
    axes = [_axis(name, values, rows) for name, values in _numbers(rows).items()]
    metric = [row.metric if math.isfinite(row.metric) else None for row in rows]
    axes.append({"label": terms.metric, "values": metric})
    shade = {"color": metric, "colorscale": "Viridis", "reversescale": terms.mode == "min"}
    return {"data": [{"type": "parcoords", "dimensions": axes, "line": shade}], "layout": {"height": 420}}


def _axis(name: str, values: Sequence[float], rows: "Sequence[TrialRow]") -> dict[str, Any]:
    said = [row.params.get(name) for row in rows]
    if any(not isinstance(value, int | float) for value in said):
        words = dict(zip(values, map(str, said), strict=True))
        return {"label": name, "values": values, "tickvals": list(words), "ticktext": list(words.values())}
    if min(values) <= 0 or max(values) < _WIDE * min(values):
        return {"label": name, "values": values}
    # Plotly's parallel coordinates have no logarithmic axes, so values and ticks are converted here.
    powers = range(math.floor(math.log10(min(values))), math.ceil(math.log10(max(values))) + 1)
    return {
        "label": name,
        "values": [math.log10(value) for value in values],
        "range": [powers[0], powers[-1]],
        "tickvals": list(powers),
        "ticktext": [f"{10.0**power:g}" for power in powers],
    }


def importance(rows: "Sequence[TrialRow]") -> list[tuple[str, float]]:
    """Return Spearman's rank correlation of each setting with the metric, strongest first; [] for few trials."""
    known = [row for row in rows if math.isfinite(row.metric)]
    if len(known) < _FEWEST_FOR_IMPORTANCE:
        return []
    metric = _ranks([row.metric for row in known])
    found = []
    for name, values in _numbers(known).items():
        ranks = _ranks(values)
        if np.std(ranks) > 0 and np.std(metric) > 0:
            found.append((name, float(np.corrcoef(ranks, metric)[0, 1])))
    return sorted(found, key=lambda one: -abs(one[1]))


def _ranks(values: Sequence[float]) -> list[float]:
    ordered = sorted(values)
    first = {value: ordered.index(value) for value in set(values)}
    count = {value: ordered.count(value) for value in set(values)}
    return [first[value] + (count[value] - 1) / 2 for value in values]


def stretches(events: Sequence[Mapping[str, Any]]) -> list[Span]:
    spans: list[Span] = []
    open_: dict[int, tuple[tuple[int, ...], float, float]] = {}  # trial → devices, begin, end

    def close(trial: int) -> None:
        if trial in open_:
            devices, begin_s, end_s = open_.pop(trial)
            spans.append(Span(f"trial {trial}", devices, begin_s, end_s, 1.0))

    first_s = min((event["at_s"] - event["seconds"] for event in events if "seconds" in event), default=0.0)
    for event in events:
        trial, at_s = event.get("trial", -1), event["at_s"] - first_s
        if "seconds" not in event:
            if event["event"] in ("end", "fail", "halt"):
                close(trial)
            continue
        devices = (event["device"], *event.get("beside", ()))
        if trial in open_ and open_[trial][0] != devices:
            close(trial)
        began_s = open_[trial][1] if trial in open_ else max(0.0, at_s - event["seconds"])
        open_[trial] = devices, began_s, at_s
        if event.get("move") != "continue":
            close(trial)
    for trial in list(open_):
        close(trial)
    return spans


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
        core: the state of the search.
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
        """Write the HTML page ``path`` with all curves, stops with reasons, and devices over time; needs no network.

        Raises:
            ConfigError: it cannot be written there.
        """
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
