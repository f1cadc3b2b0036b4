"""Write a search's report as one HTML file: curves, stops with reasons, important settings, devices over time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from uneven.journal.report.page import Page, PageTable
from uneven.journal.report.pure.draw import Figure, colour, layout, line
from uneven.journal.report.pure.gantt import Span, gantt
from uneven.search.pure.trial_records import SearchTerms
from uneven.search.search_result import TrialRow

_MOST_CURVES = 100
_MOST_NAMED = 12  # curves in a legend; with more, only the curve under the pointer shows its name

_FEWEST_FOR_IMPORTANCE = 8
_WIDE = 30  # ratio of an axis' largest to its smallest value from which it is logarithmic


def page(rows: Sequence[TrialRow], events: Sequence[Mapping[str, Any]], terms: SearchTerms, directory: Path) -> str:
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
        made.figure("Settings and what came of them", _parallel(rows, terms), "One line is one trial.")
    mattered = importance(rows)
    if mattered:
        table = PageTable(("setting", "rank correlation"), [(name, f"{share:+.2f}") for name, share in mattered])
        made.table("Which settings mattered", table)
    spans = stretches(events)
    if spans:
        devices = 1 + max(number for span in spans for number in span.devices)
        made.figure("Who had which device", gantt(spans, devices, max(span.end_s for span in spans)))
    return made.html()


def _trials(rows: Sequence[TrialRow], terms: SearchTerms) -> PageTable:
    cells = []
    for row in rows:
        params = " ".join(f"{name}={_said(value)}" for name, value in row.params.items())
        metric = f"{row.metric:.6g}" if row.metric == row.metric else "–"
        why = row.why.splitlines()[-1] if row.why else ""
        cells.append((str(row.number), metric, f"{row.best_t:g}", f"{row.t:g}", params, f"{row.status}: {why}"))
    return PageTable(("trial", terms.metric, "best at", "trained", "settings", ""), cells, frozenset({4, 5}))


def _said(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _curves(rows: Sequence[TrialRow], reports: Sequence[Mapping[str, Any]], terms: SearchTerms) -> Figure:
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


def _numbers(rows: Sequence[TrialRow]) -> dict[str, list[float]]:
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


def _parallel(rows: Sequence[TrialRow], terms: SearchTerms) -> Figure:
    axes = [_axis(name, values, rows) for name, values in _numbers(rows).items()]
    metric = [row.metric if math.isfinite(row.metric) else None for row in rows]
    axes.append({"label": terms.metric, "values": metric})
    shade = {"color": metric, "colorscale": "Viridis", "reversescale": terms.mode == "min"}
    return {"data": [{"type": "parcoords", "dimensions": axes, "line": shade}], "layout": {"height": 420}}


def _axis(name: str, values: Sequence[float], rows: Sequence[TrialRow]) -> dict[str, Any]:
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


def importance(rows: Sequence[TrialRow]) -> list[tuple[str, float]]:
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
