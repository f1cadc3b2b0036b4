"""Predicted against true speed, as pictures."""

from pathlib import Path

from uneven.journal.report.html import write
from uneven.journal.report.page import Page
from uneven.journal.report.pure.draw import Figure, colour, layout, line
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
    iterations: list[float] = list(range(first, last))
    return {
        "data": [
            line(iterations, one, name, "#bbbbbb" if name == "measured" else colour(place - 1, len(told)))
            for place, (name, one) in enumerate(lines.items())
        ],
        "layout": layout(f"samples/s of worker {worker}"),
    }
