"""The pictures of a run as Plotly's JSON (data and layout), without Plotly."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from uneven.journal.pure.metrics import Iteration, ratio
from uneven.journal.report.pure import draw
from uneven.journal.report.pure.chart_series import (
    Column,
    RunData,
    WorkerSeries,
    iteration_name,
    mean,
    moving_limit,
    stretches,
    thinned,
    training_s,
    worker_series,
)
from uneven.journal.report.pure.draw import LINES_UP_TO, Figure, colour, time_unit
from uneven.policy.core.records import LoadRecord

# Field, name and colour of each part of a step's time; the same in every picture.
PARTS = (
    ("compute_s", "compute", "#4c9f70"),
    ("data_s", "load data", "#e0b13c"),
    ("communicate_s", "communicate", "#4878a8"),
    ("wait_s", "wait", "#d1605e"),
)

_POINTS = 12_000  # of all lines of a picture together, so that a page stays small
# For asynchronous workers: the least points of a line; steps of the slowest worker per point; pieces per point of their
# times. A single piece's time jumps, because a step is a large part of it.
_LEAST_POINTS, _STEPS, _SMOOTHED = 12, 3, 5
_LIMITS, _LIMIT_OVER = 80, 10  # a line of limits has at most 80 steps, each over at least about 10 iterations
_AROUND_ZERO = ((0, "#2166ac"), (0.5, "#f7f7f7"), (1, "#b2182b"))


def resolution(workers: int) -> int:
    """Return the points per line, fewer the more workers there are."""
    return max(60, min(400, _POINTS // max(1, workers)))


def points(run: RunData) -> int:
    """Return the points per line of a worker; for asynchronous workers, the slowest takes several steps per point."""
    most = resolution(len(run.ranks))
    if not run.apart:
        return most
    slowest_s = max(worker.step_s for worker in run.summary.workers)
    steps = ratio(max(training_s(run.iterations).values()), slowest_s)
    return min(most, max(_LEAST_POINTS, int(steps / _STEPS))) if math.isfinite(steps) else most


def all_series(run: RunData) -> dict[int, WorkerSeries]:
    """Return rank → columns, thinned."""
    pieces = stretches(run.iterations, points(run))
    return {rank: worker_series(pieces, rank) for rank in run.ranks}


def common_top_s(many: Iterable[Mapping[int, WorkerSeries]]) -> float:
    return max((_robust_top(series.values()) for series in many), default=1.0)


def time_areas(run: RunData, series: Mapping[int, WorkerSeries], top_s: float) -> Figure:
    """Return each worker's compute, data, communicate and wait, stacked, in one small picture per worker."""
    layout, columns = draw.panels(len(series))
    scale, unit = time_unit(top_s)
    data: list[Figure] = []
    for index, (rank, one) in enumerate(series.items()):
        axis = "" if index == 0 else str(index + 1)
        last_row = index >= len(series) - columns
        layout[f"xaxis{axis}"] = draw.axis(run.iteration_name if last_row else "")
        layout[f"yaxis{axis}"] = draw.axis(f"{unit} per step" if index % columns == 0 else "") | {
            "range": [0, top_s * scale],
            "nticks": 5,
        }
        layout["annotations"].append(draw.caption(who(run, rank), axis))
        for name, label, fill in PARTS:
            values = [draw.rounded(value * scale) for value in getattr(one, name)]
            data.append(
                draw.line(one.iteration, values, label, fill)
                | {"stackgroup": f"rank{rank}", "line": {"width": 0}, "fillcolor": fill}
                | ({"stackgaps": "interpolate"} if run.connected else {})
                | {"xaxis": f"x{axis}", "yaxis": f"y{axis}", "legendgroup": name, "showlegend": index == 0}
            )
    return {"data": data, "layout": layout}


def per_worker(run: RunData, series: Mapping[int, WorkerSeries], field: str, y_title: str) -> Figure:
    """Return one line per worker, or a map if there are too many."""
    if len(series) > LINES_UP_TO:
        return _map(run, series, [getattr(one, field) for one in series.values()], y_title, "Viridis")
    data = []
    for position, (rank, one) in enumerate(series.items()):
        tint, name = colour(position, len(series)), f"rank {rank}"
        stairs = field == "share_percent" and not run.apart
        shape: Figure = {"line": {"color": tint, "width": 1.6, "shape": "hv" if stairs else "linear"}}
        shape |= {"connectgaps": True} if run.connected else {}
        data.append(
            draw.line(one.iteration, getattr(one, field), name, tint) | shape | {"legendgroup": name, "mode": "lines"}
        )
    layout = draw.layout(y_title, x_title=run.iteration_name) | {"showlegend": len(series) <= LINES_UP_TO}
    layout["yaxis"]["rangemode"] = "tozero"
    return {"data": data, "layout": layout}


def prediction_map(run: RunData, series: Mapping[int, WorkerSeries]) -> Figure:
    """Return the deviation of measured from predicted speeds, a row per worker."""
    rows = [
        [100 * (ratio(seen, said) - 1) for seen, said in zip(one.speed_per_s, one.predicted_per_s, strict=True)]
        for one in series.values()
    ]
    figure = _map(run, series, rows, "measured ÷ predicted − 1, %", _AROUND_ZERO)
    # At least 5 %, or noise would fill the whole colour scale.
    largest = max(5.0, draw.quantile([abs(value) for row in rows for value in row], 0.95))
    figure["data"][0] |= {"zmin": -largest, "zmax": largest}
    return figure


def _map(run: RunData, series: Mapping[int, WorkerSeries], rows: list[Column], title: str, scale: object) -> Figure:
    bar = {"title": {"text": title, "side": "right"}, "thickness": 14}
    heat = {"type": "heatmap", "z": [[draw.rounded(value) for value in row] for row in rows], "colorscale": scale}
    where = {"x": next(iter(series.values())).iteration, "y": list(series), "colorbar": bar}
    hover = {"hovertemplate": f"rank %{{y}}, {run.iteration_name} %{{x}}: %{{z:.4g}}<extra></extra>"}
    height = max(320, 90 + 7 * len(series))
    layout = draw.layout("rank", x_title=run.iteration_name, height=height) | {"hovermode": "closest"}
    layout["yaxis"]["autorange"] = "reversed"
    return {"data": [heat | where | hover], "layout": layout}


def durations(runs: Mapping[str, RunData]) -> Figure:
    """Return the duration of each iteration, one line per run, and each run's moving limit, dashed."""
    scale, unit = time_unit(max(run.summary.iteration_s for run in runs.values()))
    data, top = [], 0.0
    for position, (name, run) in enumerate(runs.items()):
        tint = colour(position, len(runs))
        timed = [one for one in run.iterations if one.duration_s == one.duration_s]
        pieces = stretches(timed, min(400, max(_LEAST_POINTS, len(timed) // _SMOOTHED)) if run.apart else 400)
        x = [float(piece[len(piece) // 2].iteration) for piece in pieces]
        y = [_usual_s(piece) * scale for piece in pieces]
        top = max(top, 1.5 * draw.quantile(y, 0.98))
        data.append(draw.line(x, y, name, tint))
        at, limit_s = moving_limit(stretches(timed, min(_LIMITS, math.ceil(len(timed) / _LIMIT_OVER))))
        if any(map(math.isfinite, limit_s)):
            dashes = {"line": {"color": tint, "width": 1.2, "dash": "dash", "shape": "hv"}}
            steps = [value * scale for value in (*limit_s, limit_s[-1])]  # stairs: the last value extends to the end
            data.append(draw.line([*at, x[-1]], steps, f"limit, {name}", tint) | dashes)
    name = iteration_name(any(run.apart for run in runs.values()))
    layout = draw.layout(f"{unit} per {name}", x_title=name)
    layout["yaxis"]["range"] = [0, top or 1]
    return {"data": data, "layout": layout}


def _usual_s(piece: Sequence[Iteration]) -> float:
    # A piece may be larger or smaller than a global batch, so weight by samples.
    if not piece[0].apart:
        return mean([one.duration_s for one in piece])
    return ratio(sum(one.duration_s for one in piece) * piece[0].apart, sum(one.global_batch for one in piece))


def scalars(run: RunData) -> dict[str, Figure]:
    """Return name → picture of the values that the user logged."""
    figures = {}
    for name, rows in run.scalars.items():
        x, y = thinned(rows, 400, lambda row: row.iteration, lambda row: row.value)
        layout = draw.layout(name, x_title=run.iteration_name)
        data = [draw.line(x, y, name, colour(0, 1), marks=len(x) <= 40)]
        figures[name] = {"data": data, "layout": _from_zero(layout, data)}
    return figures


def _from_zero(layout: Figure, data: list[Figure]) -> Figure:
    """Start the axis at 0 if each line has one point."""
    # Plotly would show a single 0.9 on an axis from −0.1 to 1.9.
    if all(len(line["y"]) == 1 for line in data):
        values = [0.0, *(line["y"][0] * 1.05 for line in data)]
        layout["yaxis"]["range"] = [min(values), max(values)]
    return layout


def scalar_against_time(runs: Mapping[str, RunData], name: str) -> Figure:
    """Return one line per run over its training time in seconds."""
    data = []
    for position, (run_name, run) in enumerate(runs.items()):
        at = training_s(run.iterations)
        rows = [row for row in run.scalars.get(name, ()) if row.iteration in at]
        x, y = thinned(rows, 400, lambda row, at=at: at[row.iteration], lambda row: row.value)  # type: ignore[misc]
        data.append(draw.line(x, y, run_name, colour(position, len(runs)), marks=len(x) <= 40))
    return {"data": data, "layout": _from_zero(draw.layout(name, x_title="training time, s"), data)}


def loads(run: RunData, y_title: str, value: Callable[[LoadRecord], float | None]) -> Figure:
    """Return one line per worker of a machine statistic; empty if it was not reported."""
    data = []
    ranks = run.ranks
    for position, rank in enumerate(ranks):
        rows = [row for row in run.loads.get(rank, ()) if value(row) is not None]
        x, y = thinned(rows, resolution(len(ranks)), lambda row: row.iteration, lambda row: value(row) or 0.0)
        if x:
            data.append(draw.line(x, y, f"rank {rank}", colour(position, len(ranks)), marks=len(x) == 1))
    layout = draw.layout(y_title, x_title=run.iteration_name) | {"showlegend": len(data) <= LINES_UP_TO}
    layout["yaxis"]["rangemode"] = "tozero"
    return {"data": data, "layout": layout}


def mean_bars(runs: Mapping[str, RunData]) -> Figure:
    """Return the mean time of every worker's step as stacked bars, one small picture per run, on one scale."""
    scale, unit = time_unit(max(run.summary.iteration_s for run in runs.values()))
    most = max(len(run.ranks) for run in runs.values())
    layout = draw.captioned(draw.layout("", height=max(220, 110 + 26 * most if most <= 16 else 110 + 11 * most)))
    layout |= {"barmode": "stack", "annotations": [], "bargap": 0.25}
    layout["grid"] = {"rows": 1, "columns": len(runs), "pattern": "independent", "xgap": 0.16}
    data: list[Figure] = []
    top = 0.0
    for index, (name, run) in enumerate(runs.items()):
        axis = "" if index == 0 else str(index + 1)
        timed = [one for one in run.iterations if one.duration_s == one.duration_s]
        series = {rank: worker_series([timed] if timed else [], rank) for rank in run.ranks}
        for field, label, fill in PARTS:
            values = [draw.rounded(scale * (getattr(one, field) or [0.0])[0]) for one in series.values()]
            data.append(
                {
                    "type": "bar",
                    "orientation": "h",
                    "x": values,
                    "y": [f"rank {rank} " for rank in series],
                    "name": label,
                    "marker": {"color": fill},
                    "hovertemplate": "%{y}: %{x:.4g} " + unit,
                }
                | {"xaxis": f"x{axis}", "yaxis": f"y{axis}", "legendgroup": field, "showlegend": index == 0}
            )
        parts = [[getattr(one, field) for field, _, _ in PARTS] for one in series.values()]
        top = max([top, *(scale * sum(part[0] for part in four if part) for four in parts)])
        layout["annotations"].append(draw.caption(name, axis))
        layout[f"yaxis{axis}"] = {"autorange": "reversed", "automargin": True, "type": "category"}
        layout[f"xaxis{axis}"] = draw.axis(f"mean {unit} per step")
    for index in range(len(runs)):
        layout["xaxis" + ("" if index == 0 else str(index + 1))]["range"] = [0, 1.05 * top or 1]
    return {"data": data, "layout": layout}


def who(run: RunData, rank: int) -> str:
    host = run.runs[rank].host if rank in run.runs else ""
    return f"rank {rank} · {host}" if host else f"rank {rank}"


def _robust_top(series: Iterable[WorkerSeries]) -> float:
    # A quantile, not the maximum: a single slow start must not flatten the rest.
    totals = [
        sum(parts)
        for one in series
        for parts in zip(one.compute_s, one.data_s, one.communicate_s, one.wait_s, strict=True)
    ]
    return 1.25 * draw.quantile(totals, 0.95) or 1.0


_THICK = 0.94  # drawn part of a device's row; the rest separates rows


class Span(NamedTuple):
    """A use of devices."""

    name: str  # the user, for example a trial
    devices: tuple[int, ...]  # their numbers
    start_s: float
    end_s: float
    computed: float  # share of the time in which the devices computed, 0 … 1


def gantt(spans: Sequence[Span], devices: int, end_s: float) -> Figure:
    """Return one row per device and one colour per name; the dark part of a bar's height is its computing share.

    ``end_s`` is the right end of the axis; several pictures get a common scale by it.
    """
    scale, unit = (1e-3, "1000 s") if end_s >= 5000 else (1.0, "s")
    names = sorted({span.name for span in spans})
    data = []
    for place, name in enumerate(names):
        mine = [(span, device) for span in spans if span.name == name for device in span.devices]
        base = {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "showlegend": False,
            "y": [device for _, device in mine],
            "base": [draw.rounded(span.start_s * scale) for span, _ in mine],
            "x": [draw.rounded((span.end_s - span.start_s) * scale) for span, _ in mine],
        }
        texts = [f"{name} on {len(span.devices)}: computes {span.computed:.0%} of the time" for span, _ in mine]
        tint = {"color": colour(place, len(names))}
        pale = {"width": [_THICK] * len(mine), "opacity": 0.3, "hovertext": texts, "hoverinfo": "text"}
        dark = {"width": [draw.rounded(_THICK * span.computed) for span, _ in mine], "hoverinfo": "skip"}
        data += [base | pale | {"marker": tint}, base | dark | {"marker": tint}]
    return {
        "data": data,
        "layout": _layout(devices, end_s * scale, unit) | {"annotations": _labels(spans, end_s, scale)},
    }


def _labels(spans: Sequence[Span], end_s: float, scale: float) -> list[Figure]:
    """Return names in the middle of every block of neighbouring devices, if there is room."""
    found = []
    for span in spans:
        if span.end_s - span.start_s < 0.012 * end_s * len(span.name):
            continue
        for first, last in _blocks(span.devices):
            at = {"x": draw.rounded((span.start_s + span.end_s) / 2 * scale), "y": (first + last) // 2}
            look = {"showarrow": False, "font": {"size": 11, "color": "#111"}, "bgcolor": "rgba(255,255,255,0.7)"}
            found.append({"text": span.name} | at | look)
    return found


def _blocks(devices: Sequence[int]) -> list[tuple[int, int]]:
    ordered = sorted(devices)
    cuts = [place for place, (one, two) in enumerate(pairwise(ordered), 1) if two != one + 1]
    edges = [0, *cuts, len(ordered)]
    return [(ordered[start], ordered[end - 1]) for start, end in pairwise(edges)]


def _layout(devices: int, end: float, unit: str) -> Figure:
    return {
        "height": 90 + 22 * devices if devices <= 32 else 90 + 9 * devices,
        "margin": {"l": 60, "r": 20, "t": 10, "b": 46},
        "barmode": "overlay",
        "plot_bgcolor": "#fff",
        "paper_bgcolor": "#fff",
        "font": {"family": "system-ui, sans-serif", "size": 12, "color": "#333"},
        "xaxis": {"title": {"text": unit}, "range": [0, end], "gridcolor": "#e8e8e8", "zeroline": False},
        "yaxis": {"title": {"text": "device"}, "range": [devices - 0.5, -0.5], "showgrid": False, "zeroline": False}
        | ({"dtick": 1} if devices <= 32 else {}),
    }
