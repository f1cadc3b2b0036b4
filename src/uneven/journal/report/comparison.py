"""The comparison of several runs: one page, and one table."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from uneven.errors import JournalError
from uneven.journal.pure.metrics import ratio
from uneven.journal.reader import read
from uneven.journal.report import html
from uneven.journal.report.page import Page, PageTable
from uneven.journal.report.pure import figures
from uneven.journal.report.pure.chart_series import RunData, iteration_name, run_data
from uneven.journal.report.pure.text import count, percent, seconds

_EACH_UP_TO = 8  # with more workers, only the least and the greatest value are shown
_APART_NOTE = (
    "If the workers of a run take separate steps, a global batch is a number of samples from any workers, and a step "
    "counts at its end. In other runs it is an iteration."
)


def compared(runs: Mapping[str, Path]) -> dict[str, RunData]:
    """Read the journals of these runs; raise JournalError for a run without a journal or a finished iteration."""
    data = {name: run_data(read(path)) for name, path in runs.items()}
    for name, one in data.items():
        if not one.iterations:
            raise JournalError(f"run {name!r} in {runs[name]} has no finished iteration: nothing to compare")
    return data


def named(paths: Sequence[Path]) -> dict[str, Path]:
    """Return each run under its directory's name, or its path if names are equal; JournalError if one is given
    twice."""
    if len({path.resolve() for path in paths}) < len(paths):
        raise JournalError(f"{', '.join(map(str, paths))}: name each run once")
    names = [path.resolve().name for path in paths]
    return {name if names.count(name) == 1 else str(path): path for name, path in zip(names, paths, strict=True)}


def comparison(
    runs: Mapping[str, Path], table: PageTable | None = None, *, title: str = "Comparison", lead: str = ""
) -> str:
    """Return several runs on one HTML page, side by side; see :func:`comparison_page`."""
    return comparison_page(compared(runs), table, title=title, lead=lead).html()


def comparison_page(
    data: Mapping[str, RunData], table: PageTable | None = None, *, title: str = "Comparison", lead: str = ""
) -> Page:
    """Return several named runs on one page, side by side; ``table`` replaces the runs' summaries."""
    page = Page(title, lead)
    page.table("Results", table or summary_table(data), "" if table else summary_note(data))
    page.figure(
        "Where the time of a step goes", figures.mean_bars(data), f"Mean over the run, on one scale. {html.STRAGGLER}"
    )
    apart = any(one.apart for one in data.values())
    page.figure(
        f"Time per {iteration_name(apart)}",
        figures.durations(data),
        "Dashed: each run's limit, from the speeds measured at that time." + (f" {_APART_NOTE}" if apart else ""),
    )
    for name in dict.fromkeys(name for one in data.values() for name in one.scalars):
        page.figure(f"{name}, by training time", figures.scalar_against_time(data, name))
    thinned = {name: figures.all_series(one) for name, one in data.items()}
    top_s = figures.common_top_s(thinned.values())  # one scale for all runs, or areas could not be compared
    for name, one in data.items():
        series = thinned[name]
        page.figure(f"{name}: each worker's time", figures.time_areas(one, series, top_s))
        title, figure = html.shares(one, series)
        page.figure(f"{name}: {title.lower()}", figure)
    return page


def summary_table(runs: Mapping[str, RunData]) -> PageTable:
    """Return one row per run; times are relative to the first run."""
    # If any run is asynchronous, all columns are means over the time: only samples are comparable then, not steps.
    apart = any(run.apart for run in runs.values())
    logged = [name for name in next(iter(runs.values())).scalars if all(name in run.scalars for run in runs.values())]
    columns = (
        "run", f"time per {iteration_name(apart)}", "÷ first", "samples/s", "waiting", "communicating", "control",
        "of the limit", "shares, %", "waits, %", *logged,
    )  # fmt: skip
    first_s = _times(next(iter(runs.values())), apart)[0]
    rows = []
    for name, run in runs.items():
        s = run.summary
        usual_s, per_s = _times(run, apart)
        times = (seconds(usual_s), f"{ratio(usual_s, first_s):.2f}", count(per_s))
        parts = (s.wait_share, s.communicate_share, s.control_share, s.fraction_of_limit)
        shares = _each([ratio(worker.samples, s.samples) for worker in s.workers])
        waits = _each([worker.wait_share for worker in s.workers])
        last = (f"{run.scalars[scalar][-1].value:.4g}" for scalar in logged)
        rows.append([name, *times, *map(percent, parts), shares, waits, *last])
    return PageTable(columns, rows)


def summary_note(runs: Mapping[str, RunData]) -> str:
    if not any(run.apart for run in runs.values()):
        return ""
    return f"Times and samples/s are means over the whole time. {_APART_NOTE}"


def _times(run: RunData, apart: bool) -> tuple[float, float]:
    s = run.summary
    return (s.mean_s, s.mean_per_s) if apart else (s.iteration_s, s.samples_per_s)


def _each(values: Sequence[float]) -> str:
    shown = [f"{100 * value:.0f}" for value in values]
    if len(shown) > _EACH_UP_TO:
        return f"{min(values) * 100:.0f} to {max(values) * 100:.0f}"
    return " / ".join(shown) or "–"
