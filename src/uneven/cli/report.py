"""The command ``uneven report``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from uneven.cli.options import LogTo, trackers
from uneven.policy.core.printable import printable

if TYPE_CHECKING:
    from uneven.journal.report.page import Page


def report(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[RUN]…",
            help="Run directory; several are compared. [default: the newest in ./runs]",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="File to write. [default: RUN/report.html; for several runs, comparison.html]",
            show_default=False,
        ),
    ] = None,
    beside: Annotated[
        bool,
        typer.Option("--beside", help="Write Plotly to a file next to the page, so that pages are small and share it."),
    ] = False,
    trace: Annotated[
        Path | None,
        typer.Option("--trace", metavar="FILE", help="Also write a trace for ui.perfetto.dev.", show_default=False),
    ] = None,
    tensorboard: Annotated[
        Path | None,
        typer.Option("--tensorboard", metavar="DIR", help="Also write scalars for TensorBoard.", show_default=False),
    ] = None,
    log_to: LogTo = None,
) -> None:
    """Write a run's HTML report with charts, or compare several runs on one page.

    The report is one file of 2 MB that opens in any browser without a network. It has a table of the workers and
    their time (compute, load data, communicate, wait). It also shows shares, speeds and predictions, all values that
    the script logged, use of the machines, and events. A running run is shown up to now. The last printed
    line is advice. For several runs the command prints a table: time per iteration, waits, shares, and the values that
    all of them logged.

    \b
    Examples:
      uneven report                                      the newest run
      uneven report runs/NAME --out report.html
      uneven report runs/A runs/B --out a-b.html         two runs next to each other
      uneven report runs/NAME --trace run.trace.json     every step of every worker, for Perfetto
      uneven report runs/NAME --tensorboard tb           then: tensorboard --logdir tb
      uneven report runs/NAME --log-to mlflow:mlruns     also wandb:FOLDER, tensorboard:FOLDER
    """
    from uneven.errors import ConfigError
    from uneven.journal.reader import newest_run
    from uneven.journal.report import html
    from uneven.runtime.installed import need

    need("report", "plotly")
    paths = runs or [newest_run()]
    if len(paths) > 1:
        if trace is not None or tensorboard is not None or log_to:
            raise ConfigError("--trace, --tensorboard and --log-to are of one run: name one")
        page, out = _compared(paths), out or Path("comparison.html")
    else:
        page, out = html.report_page(paths[0]), out or paths[0] / "report.html"
    html.write_page(page, out, plotly_beside=beside)
    _say("report", out)
    if trace is not None:
        from uneven.journal.report import perfetto as tracing

        tracing.write(paths[0], trace)
        _say("trace", trace, " (open it at https://ui.perfetto.dev)")
    for tool in trackers(log_to, tensorboard):
        from uneven.journal.report.track import tracking

        tracking.write(paths[0], tool)
    if tensorboard is not None:
        _say("tensorboard", tensorboard, f" (tensorboard --logdir {tensorboard})")
    if page.advice:
        typer.echo(printable(f"{'advice:':<12} {page.advice}"))


def _compared(paths: list[Path]) -> Page:
    from rich import box
    from rich.table import Table

    from uneven.journal.report import comparison
    from uneven.journal.report.console import Console

    data = comparison.compared(comparison.named(paths))
    summary = comparison.summary_table(data)
    names, *lines = zip(summary.columns, *summary.rows, strict=True)  # a column per run: pages are wider
    table = Table(box=box.SIMPLE_HEAD)
    for position, name in enumerate(names):
        table.add_column(name, justify="right" if position else "left")
    for line in lines:
        table.add_row(*line)
    Console().print(table)
    if note := comparison.summary_note(data):
        Console().print(note)
    return comparison.comparison_page(data, title=" · ".join(data))


def _say(what: str, path: Path, more: str = "") -> None:
    typer.echo(printable(f"{what + ':':<12} {path}{more}"))
