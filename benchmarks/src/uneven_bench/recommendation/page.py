"""The tables of ``uneven bench recommendation``, and its pictures of the scaling."""

from typing import Any

from uneven.journal.report.page import Page
from uneven.journal.report.pure.draw import Figure, colour, layout, line


def scaling_page(result: dict[str, Any]) -> str:
    """Return examples a second by the number of trainers, and of each unequal one, as one offline HTML file."""
    lead = f"{result['rounds']} rounds, medians; the server runs beside them."
    page = Page("Trainers with their tables on a server", lead)
    alone = result["examples_per_s"]["1 at 0.2 core"]
    counts = [float(one) for one in result["scaling"]]
    most = list(result["scaling"])[-1]
    measured = [int(count) * scale * alone for count, scale in result["scaling"].items()]
    page.figure(
        "Examples a second over the number of trainers",
        _drawn(counts, measured, [count * alone for count in counts], "trainers of 0.2 core"),
        f"Of {most} trainers each does {result['scaling'][most]:.0%} of what one alone does.",
    )
    for rows in result["trainers_per_s"].values():
        shares, rates = [one["share"] for one in rows], [one["per_s"] for one in rows]
        per_core = sum(rates) / sum(shares)
        numbers = [float(place) for place in range(len(rows))]
        page.figure(
            f"Examples a second of each trainer, on {', '.join(f'{one:g}' for one in shares)} of a core",
            _drawn(numbers, rates, [share * per_core for share in shares], "trainer"),
            "In proportion is what each would do if all had the same rate for a core.",
        )
    return page.html()


def _drawn(x: list[float], measured: list[float], proportional: list[float], what: str) -> Figure:
    shown = layout("examples/s", x_title=what)
    shown["yaxis"]["rangemode"] = "tozero"
    shown["xaxis"]["tickvals"] = x
    return {
        "data": [
            line(x, proportional, "in proportion", colour(7, 8)) | {"line": {"color": colour(7, 8), "dash": "dot"}},
            line(x, measured, "measured", colour(0, 8), marks=True),
        ],
        "layout": shown,
    }
