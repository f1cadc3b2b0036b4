"""``uneven report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from uneven.core.text import printable


def report(
    run: Annotated[
        Path | None,
        typer.Argument(help="Run directory. By default the newest one under ./runs.", show_default=False),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="Where to write it. By default RUN/report.html.",
            show_default=False,
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option("--trace", metavar="FILE", help="Also write a trace for ui.perfetto.dev.", show_default=False),
    ] = None,
    tensorboard: Annotated[
        Path | None,
        typer.Option("--tensorboard", metavar="DIR", help="Also write scalars for TensorBoard.", show_default=False),
    ] = None,
) -> None:
    """Write a run's HTML report, pictures included.

    One file that opens in any browser, without a network: a table of the workers, where each one's time goes
    (compute, load data, communicate, wait), shares, speeds and their predictions, everything that the script
    logged, use of the machines, and a list of events. A run that is still going on is shown as far as it is.

    \b
    Examples:
      uneven report                                      the newest run
      uneven report runs/NAME --out report.html
      uneven report runs/NAME --trace run.trace.json     every step of every worker, for Perfetto
      uneven report runs/NAME --tensorboard tb           then: tensorboard --logdir tb
    """
    from uneven.journal.paths import newest_run
    from uneven.report import html

    run = run if run is not None else newest_run()
    out = out if out is not None else run / "report.html"
    html.write(html.report(run), out)
    _say("report", out)
    if trace is not None:
        from uneven.report import trace as tracing

        tracing.write(run, trace)
        _say("trace", trace, " (open it at https://ui.perfetto.dev)")
    if tensorboard is not None:
        from uneven.report import tensorboard as board

        board.write(run, tensorboard)
        _say("tensorboard", tensorboard, f" (tensorboard --logdir {tensorboard})")


def _say(what: str, path: Path, more: str = "") -> None:
    typer.echo(printable(f"{what + ':':<12} {path}{more}"))
