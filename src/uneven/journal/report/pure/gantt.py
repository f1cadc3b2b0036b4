"""The use of devices over time as Plotly's JSON."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from uneven.journal.report.pure.figures import Figure, colour

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

    ``end_s`` is the right end of the axis, for a common scale of several pictures.
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
            "base": [_short(span.start_s * scale) for span, _ in mine],
            "x": [_short((span.end_s - span.start_s) * scale) for span, _ in mine],
        }
        texts = [f"{name} on {len(span.devices)}: computes {span.computed:.0%} of the time" for span, _ in mine]
        tint = {"color": colour(place, len(names))}
        pale = {"width": [_THICK] * len(mine), "opacity": 0.3, "hovertext": texts, "hoverinfo": "text"}
        dark = {"width": [_short(_THICK * span.computed) for span, _ in mine], "hoverinfo": "skip"}
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
            at = {"x": _short((span.start_s + span.end_s) / 2 * scale), "y": (first + last) // 2}
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


def _short(value: float) -> float:
    return float(f"{value:.5g}")
