"""Predicted against true speed, as pictures."""

from pathlib import Path

from uneven.journal.report.html import write
from uneven.journal.report.page import Page
from uneven.journal.report.pure.figures import Figure, colour
from uneven_bench.predictors.cases import Floats, PredictorCase

SHOWN = 160  # iterations in a picture
DRAWN = ("last", "ema", "narx", "auto")  # predictors in a picture; more would hide each other


def write_page(path: Path, cases: dict[str, PredictorCase], told: dict[str, dict[str, Floats]]) -> None:
    """Write one picture per case: the worker with the largest change of speed in the first scored part. Raises
    JournalError: the page cannot be written."""
    page = Page("Predicted and measured speed", "The first scored iterations of one worker of each case.")
    for name, case in cases.items():
        page.figure(name, snapshot(case, {one: told[one][name] for one in DRAWN if one in told}))
    write(page.html(), path)


def snapshot(case: PredictorCase, told: dict[str, Floats]) -> Figure:
    """Draw the worker whose speed varies most, relative to its mean; predictions are (workers, iterations)."""
    first, last = case.scored_from, min(case.iterations, case.scored_from + SHOWN)
    window = case.speeds_per_s[:, first:last]
    worker = int((window.std(axis=1) / window.mean(axis=1)).argmax())
    lines = {"measured": window[worker], **{name: one[worker, first:last] for name, one in told.items()}}
    axis = {"gridcolor": "#e8e8e8", "automargin": True}
    return {
        "data": [
            {
                "type": "scatter",
                "mode": "lines",
                "name": name,
                "x": list(range(first, last)),
                "y": [round(float(value), 3) for value in line],
                "line": {"color": "#bbbbbb" if name == "measured" else colour(place - 1, len(told)), "width": 1.6},
            }
            for place, (name, line) in enumerate(lines.items())
        ],
        "layout": {
            "height": 300,
            "margin": {"l": 60, "r": 20, "t": 30, "b": 45},
            "plot_bgcolor": "#fff",
            "paper_bgcolor": "#fff",
            "legend": {"orientation": "h", "x": 1, "xanchor": "right", "y": 1.02, "yanchor": "bottom"},
            "xaxis": axis | {"title": {"text": "iteration"}},
            "yaxis": axis | {"title": {"text": f"samples/s of worker {worker}"}},
        },
    }
