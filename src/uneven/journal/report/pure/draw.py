"""The elements of all pictures: lines, axes, captions, colours."""

import math
from collections.abc import Sequence
from typing import Any

from uneven.journal.report.pure.chart_series import Column

Figure = dict[str, Any]  # Plotly's JSON (data and layout), built without importing Plotly

LINES_UP_TO = 16  # more workers are drawn as a map or without a legend
_FEW = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9", "#7f3c8d", "#444444")
_CAPTION = 22  # height of a caption with its margins, pixels
_GRID = "#e8e8e8"


def colour(position: int, of: int) -> str:
    """Return the colour of a worker (or a run), the same in every picture of a page."""
    if of <= len(_FEW):
        return _FEW[position]
    # Neighbouring hues alternate in lightness; hues above 300 would look like the first one again.
    hue, light = 300 * position / (of - 1), 38 + 14 * (position % 2)
    return f"hsl({hue:.0f},65%,{light}%)"


def time_unit(typical_s: float) -> tuple[float, str]:
    """Return the factor and the name of a readable unit for such times."""
    return (1.0, "s") if not typical_s < 1 else (1e3, "ms")  # NaN: seconds


def line(x: Column, y: Column, name: str, tint: str, *, marks: bool = False) -> Figure:
    """Return one line, with marks at the points if ``marks``."""
    return {
        "type": "scatter",
        "mode": "lines+markers" if marks else "lines",
        "x": x,
        "y": [rounded(value) for value in y],
        "name": name,
        "line": {"color": tint, "width": 1.8},
        "hovertemplate": "%{y:.4g}",
    }


def marks(x: Sequence[float | None], y: Sequence[float | None], name: str, marker: Figure, **more: Any) -> Figure:
    """Return marks at some points; ``more`` are further keys of the trace."""
    return {"type": "scatter", "mode": "markers", "x": x, "y": y, "name": name, "marker": marker, **more}


def layout(y_title: str, *, x_title: str = "iteration", height: int = 320) -> Figure:
    """Return the layout of one picture with its axes; heights in pixels."""
    return {
        "height": height,
        "margin": {"l": 70, "r": 20, "t": 40, "b": 50},
        "hovermode": "x unified",
        "plot_bgcolor": "#fff",
        "paper_bgcolor": "#fff",
        "font": {"family": "system-ui, sans-serif", "size": 12, "color": "#333"},
        "legend": {"orientation": "h", "x": 1, "xanchor": "right", "y": 1.02, "yanchor": "bottom"},
        "xaxis": axis(x_title),
        "yaxis": axis(y_title),
    }


def panels(count: int) -> tuple[Figure, int]:
    """Return the layout of ``count`` small pictures, and their number of columns; add captions to its annotations."""
    columns = 1 if count <= 2 else 2 if count <= 8 else 4
    rows = math.ceil(count / columns)
    found = captioned(layout("", height=max(260, 70 + rows * (190 if columns < 4 else 125))))
    found["grid"] = {"rows": rows, "columns": columns, "pattern": "independent", "ygap": 0.35, "xgap": 0.12}
    found["annotations"] = []
    return found, columns


def captioned(layout: Figure) -> Figure:
    """Move the legend above the captions of the first row, which it would cover on a narrow page."""
    margin = layout["margin"]
    drawn = layout["height"] - margin["t"] - margin["b"]
    layout["height"] += _CAPTION
    margin["t"] += _CAPTION
    layout["legend"]["y"] = 1 + _CAPTION / drawn
    return layout


def axis(title: str) -> Figure:
    return {"title": {"text": title}, "gridcolor": _GRID, "zerolinecolor": _GRID, "automargin": True}


def caption(text: str, axis: str) -> Figure:
    """Return the caption above a small picture; ``axis`` is "" for the first, "2" for the second, …"""
    where = {"xref": f"x{axis} domain", "yref": f"y{axis} domain", "x": 0, "y": 1}
    anchors = {"xanchor": "left", "yanchor": "bottom", "showarrow": False, "font": {"size": 12}}
    return {"text": text} | where | anchors


def quantile(values: Sequence[float], q: float) -> float:
    """Return quantile q of the finite values; 0 if there is none."""
    known = sorted(value for value in values if math.isfinite(value))
    return known[min(len(known) - 1, int(q * len(known)))] if known else 0.0


def rounded(value: float) -> float:
    return float(f"{value:.5g}") if math.isfinite(value) else value  # five digits keep pages small
