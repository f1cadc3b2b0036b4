"""The picture of batch sizes and batch times during a run, with cluster events and a method's phases."""

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from uneven.journal.pure.messages import CLUSTER
from uneven.journal.report.pure import draw
from uneven.journal.report.pure.chart_series import Column, RunData, WorkerSeries, stretches, worker_series
from uneven.journal.report.pure.draw import LINES_UP_TO, Figure, colour, time_unit
from uneven.policy.core.records import SplitRecord

PHASES = {"fast approach": "#e8f1fa", "fine-tune": "#fdf0dc", "settled": "#e9f5ea"}  # LB-BSP on GPUs → colours

_PHASE = re.compile(r"numerical, ([^:]+):")  # how the split's reason names the phase
_LABELS = 6  # more events than this are marked without text, which would overlap; the list of events has it
_CLOSE = 0.22  # labels closer than this part of the width are stacked
_TOP, _BOTTOM = (0.54, 1.0), (0.0, 0.44)  # vertical extents of the two pictures
_DEAREST = 1.3  # top of the time scale ÷ 98th percentile, so that a slow start does not flatten the rest


def batches_and_times(run: RunData, points: int) -> Figure:
    """Return two pictures over one axis, each worker's samples and seconds, with at most ``points`` per line."""
    # The last, smaller iteration of an epoch is left out: it does not show the split.
    usual = sorted(one.global_batch for one in run.iterations)[len(run.iterations) // 2]
    whole = [one for one in run.iterations if one.apart or one.global_batch >= usual]
    pieces = stretches(whole, points)
    series = {rank: worker_series(pieces, rank) for rank in run.ranks}
    ceiling_s = _DEAREST * draw.quantile([t for one in series.values() for t in one.own_s], 0.98)
    scale, unit = time_unit(ceiling_s)
    height = 520 if len(series) <= LINES_UP_TO else 200 + 12 * len(series)
    layout = draw.layout("samples", x_title=run.iteration_name, height=height)
    layout["xaxis"]["anchor"] = "y2"
    layout["yaxis"] |= {"domain": _TOP, "rangemode": "tozero"}
    layout["yaxis2"] = draw.axis(f"{unit} per batch") | {"domain": _BOTTOM}
    if len(series) > LINES_UP_TO:
        data = _maps(run, series, scale, unit)
        layout["yaxis"] |= {"autorange": "reversed", "title": {"text": "rank"}}
        layout["yaxis2"] |= {"autorange": "reversed", "title": {"text": "rank"}}
        layout["hovermode"] = "closest"
    else:
        data = _lines(series, scale, {"connectgaps": True} if run.connected else {})
        layout["yaxis2"]["range"] = [0, ceiling_s * scale or 1]  # a range must not be empty
    last = max(one.iteration for one in run.iterations)
    bands = phases(run.splits, last)
    shapes = [_band(first, end, phase) for first, end, phase in bands] if len(series) <= LINES_UP_TO else []
    lines, labels = _marks(run, last)
    layout["shapes"], layout["annotations"] = [*shapes, *lines], labels
    layout["margin"]["t"] += 16 * max((label["yshift"] // 16 + 1 for label in labels), default=0)
    if shapes:
        data += [_key(phase) for phase in dict.fromkeys(phase for _, _, phase in bands)]
    layout["legend"] = {"orientation": "h", "x": 0, "xanchor": "left", "y": -0.14, "yanchor": "top"}
    layout["margin"]["b"] = 90
    return {"data": data, "layout": layout}


def phases(splits: Sequence[SplitRecord], last: int) -> list[tuple[int, int, str]]:
    """Return (first iteration, end, name) of each phase; empty for other methods."""
    # A phase is known by its splits, so one without changes counts as part of the phase before.
    named = [(split.iteration, found[1]) for split in splits if (found := _PHASE.match(split.reason))]
    known = [(iteration, phase) for iteration, phase in named if phase in PHASES]
    if not known:
        return []
    starts = [(0, known[0][1])]
    for iteration, phase in known:
        if phase != starts[-1][1]:
            starts.append((iteration, phase))
    ends = [(first, then, phase) for (first, phase), (then, _) in pairwise([*starts, (last, "")])]
    return [one for one in ends if one[1] > one[0]]


def _lines(series: Mapping[int, WorkerSeries], scale: float, gaps: Figure) -> list[Figure]:
    data = []
    for position, (rank, one) in enumerate(series.items()):
        name, tint = f"rank {rank}", colour(position, len(series))
        stairs = {"line": {"color": tint, "width": 1.8, "shape": "hv"}, "legendgroup": name}
        data.append(draw.line(one.iteration, one.batch, name, tint) | stairs | gaps)
        times = draw.line(one.iteration, [t * scale for t in one.own_s], name, tint)
        thin = {"line": {"color": tint, "width": 1.3}, "legendgroup": name, "showlegend": False}
        data.append(times | thin | gaps | {"yaxis": "y2", "xaxis": "x"})
    return data


def _maps(run: RunData, series: Mapping[int, WorkerSeries], scale: float, unit: str) -> list[Figure]:
    times = [[t * scale for t in one.own_s] for one in series.values()]
    rows: tuple[tuple[list[Column], str, str, tuple[float, float]], ...] = (
        ([one.batch for one in series.values()], "samples", "y", _TOP),
        (times, f"{unit} per batch", "y2", _BOTTOM),
    )
    return [
        {
            "type": "heatmap",
            "z": [[draw.rounded(value) for value in row] for row in table],
            "x": next(iter(series.values())).iteration,
            "y": list(series),
            "yaxis": yaxis,
            "colorscale": "Viridis",
            "zmin": 0,
            "zmax": draw.rounded(_DEAREST * draw.quantile([value for row in table for value in row], 0.98)) or 1,
            "colorbar": {
                "title": {"text": what, "side": "right"},
                "thickness": 14,
                "y": sum(where) / 2,
                "len": 1.05 * (where[1] - where[0]),
            },
            "hovertemplate": f"rank %{{y}}, {run.iteration_name} %{{x}}: %{{z:.4g}} {what}<extra></extra>",
        }
        for table, what, yaxis, where in rows
    ]


def _across(first: int, end: int) -> dict[str, Any]:
    return {"xref": "x", "yref": "paper", "x0": first, "x1": end, "y0": 0, "y1": 1}


def _band(first: int, end: int, phase: str) -> dict[str, Any]:
    return {"type": "rect", "layer": "below", "fillcolor": PHASES[phase], "line": {"width": 0}, **_across(first, end)}


def _key(phase: str) -> Figure:
    # A trace without points: it only adds a line to the legend.
    mark = {"color": PHASES[phase], "size": 14, "symbol": "square", "line": {"color": "#bbb", "width": 1}}
    return draw.marks([None], [None], phase, mark, hoverinfo="skip")


def _marks(run: RunData, last: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return a vertical line for each cluster event or membership change, and labels if there is room."""
    happened = sorted(
        [(event.iteration, f"{event.event}: {event.message}") for event in run.events if event.event in CLUSTER]
        + [(change.border, change.why) for change in run.changes.all]
    )
    look = {"color": "#555", "width": 1.2, "dash": "dash"}
    lines = [{"type": "line", **_across(iteration, iteration), "line": look} for iteration, _ in happened]
    labels: list[dict[str, Any]] = []
    level, before = 0, -float("inf")
    for iteration, words in happened if len(happened) <= _LABELS else []:
        level = level + 1 if iteration - before < _CLOSE * last else 0
        before = iteration
        late = iteration > 0.6 * last  # to the left of its line, so that it stays inside the picture
        labels.append(
            {"text": words, "xref": "x", "yref": "paper", "x": iteration,
             "y": 1, "yshift": 16 * level, "xanchor": "right" if late else "left", "yanchor": "bottom",
             "showarrow": False, "font": {"size": 11, "color": "#555"}}
        )  # fmt: skip
    return lines, labels
