"""The command ``uneven plan RUN --what-if``: a recorded run, simulated with one change."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from uneven import journal
from uneven.cli import answer
from uneven.cli.plan_page import amount, amounts
from uneven.cluster import files
from uneven.cluster.pure.plan.what_if import WhatIf, simulated
from uneven.journal.report import html
from uneven.journal.report.console import Console, columns
from uneven.journal.report.page import Page, PageTable
from uneven.journal.report.pure import draw
from uneven.journal.report.pure.draw import Figure, colour
from uneven.journal.report.pure.text import count, seconds
from uneven.runtime.installed import need

_ITERATIONS_NOTE = (
    "Cut off if a single one takes far longer than the others. If workers do not step together: the time "
    "for the samples of a global batch."
)


def plan(run: Path, changes: Sequence[str], seed: int, report: Path | None, form: answer.Form) -> None:
    """Simulate, print, and draw. Raises ConfigError for an invalid change, or a run with too few records."""
    if report is not None:
        need("report", "plotly")
    found = what_if(run, changes, seed)
    if report is not None:
        html.write_page(page(found), report)
    if form is answer.Form.JSON:
        answer.write(to_json(found))
        return
    show(found)
    if report is not None:
        print(f"report: {report}")


def what_if(run: Path, changes: Sequence[str], seed: int) -> WhatIf:
    """Simulate the recorded run without a change, and with each change separately."""
    path = run / "cluster.toml"
    prices = files.load(path) if path.is_file() else None
    return simulated(run.resolve().name, list(journal.read(run).records()), changes, seed, prices=prices)


def show(found: WhatIf, console: Console | None = None) -> None:
    console = console or Console(highlight=False)
    table = _table(found)
    console.print(columns(table.columns, table.rows))
    for line in sentences(found):
        console.print(line)


def sentences(found: WhatIf) -> list[str]:
    said = [
        f"The simulated throughput is {abs(found.error):.1%} {'above' if found.error > 0 else 'below'} the recorded "
        f"one; gains compare simulations."
    ]
    for one in found.played[1:]:
        gain = found.gain(one)
        how = f"{gain:.2f} times as fast" if gain >= 1 else f"slower: {gain:.2f} of the throughput"
        said.append(f"{one.words}: {how}; expect {count(gain * found.measured_per_s)} samples/s.")
    return said


def _table(found: WhatIf) -> PageTable:
    rows = [["recorded", count(found.measured_per_s), seconds(found.measured_s), ""]]
    for one in found.played:
        rows.append([one.words, count(one.samples_per_s), seconds(one.iteration_s), f"{found.gain(one):.2f} ×"])
    columns = ["run", "samples/s", "time per iteration", "gain"]
    prices = [one.price for one in found.played if one.price is not None]
    if prices:
        columns += [f"{found.currency}/hour", f"{found.currency}/10⁶ samples"]
        cells = [["", ""], *([amount(one.per_hour), amount(one.per_million)] for one in prices)]
        rows = [[*row, *more] for row, more in zip(rows, cells, strict=True)]
    return PageTable(columns, rows)


def page(found: WhatIf) -> Page:
    made = Page(f"What if · {found.name}", " ".join(sentences(found)))
    made.table("Recorded, and simulated", _table(found))
    made.figure("Throughput", _bars(found), "Recorded, then simulated.")
    made.figure("Time per iteration", _lines(found), _ITERATIONS_NOTE)
    return made


def _bars(found: WhatIf) -> Figure:
    names = ["recorded", *(one.words for one in found.played)]
    values = [found.measured_per_s, *(one.samples_per_s for one in found.played)]
    tints = [colour(place, len(names)) for place in range(len(names))]
    bar = {
        "type": "bar",
        "orientation": "h",
        "x": [draw.rounded(one) for one in values],
        "y": [f"{one} " for one in names],
        "marker": {"color": tints},
        "hovertemplate": "%{x:.4g} samples/s<extra></extra>",
    }
    layout = draw.layout("", x_title="samples/s", height=110 + 34 * len(names)) | {"hovermode": "closest"}
    layout["yaxis"] |= {"autorange": "reversed", "type": "category"}
    return {"data": [bar], "layout": layout}


def _lines(found: WhatIf) -> Figure:
    series = [("recorded", found.durations_s), *((one.words, one.durations_s) for one in found.played)]
    scale, unit = draw.time_unit(found.measured_s)
    data, top = [], 0.0
    for place, (name, durations_s) in enumerate(series):
        y = [value * scale for value in durations_s]
        # The quantile, because one very long iteration would flatten all others.
        top = max(top, 1.3 * draw.quantile(y, 0.95))
        data.append(draw.line(list(map(float, range(1, len(y) + 1))), y, name, colour(place, len(series))))
    layout = draw.layout(f"{unit} per iteration", height=380)
    layout["yaxis"]["range"] = [0, top or 1]
    return {"data": data, "layout": layout}


def to_json(found: WhatIf) -> dict[str, Any]:
    return {
        "run": found.name,
        "measured_samples_per_s": found.measured_per_s,
        "measured_iteration_s": found.measured_s,
        "error": found.error,
        "what_if": [
            {
                "words": one.words,
                "samples_per_s": one.samples_per_s,
                "iteration_s": one.iteration_s,
                "gain": found.gain(one),
                "expected_per_s": found.gain(one) * found.measured_per_s,
                **({} if one.price is None else amounts(one.price)),
            }
            for one in found.played
        ],
    }
