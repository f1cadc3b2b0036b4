"""The command ``uneven report``."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from uneven.cli import answer, complete
from uneven.cli.options import LogTo, argument, option, switch, trackers
from uneven.errors import ConfigError
from uneven.policy.core.printable import printable

if TYPE_CHECKING:
    from uneven.journal.report.pure.chart_series import RunData


def report(
    runs: Annotated[
        list[Path] | None,
        argument(
            "[RUN]…",
            "Run directory; several are compared. [default: the newest in ./runs]",
            autocompletion=complete.runs,
        ),
    ] = None,
    page: Annotated[
        Path | None,
        option("FILE", "File to write. [default: RUN/report.html; for several runs, comparison.html]", "--report"),
    ] = None,
    separate_plotly: Annotated[
        bool,
        switch("Write Plotly to a file next to the page, so that pages are small and share it.", "--separate-plotly"),
    ] = False,
    trace: Annotated[Path | None, option("FILE", "Also write a trace for ui.perfetto.dev.", "--trace")] = None,
    log_to: LogTo = None,
    form: answer.Format = answer.Form.TEXT,
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
      uneven report runs/NAME --report report.html
      uneven report runs/A runs/B --report a-b.html      two runs next to each other
      uneven report runs/NAME --trace run.trace.json     every step of every worker, for Perfetto
      uneven report runs/NAME --log-to mlflow:mlruns     also wandb:FOLDER, tensorboard:FOLDER
    """
    from uneven.journal.reader import newest_run, read
    from uneven.journal.report import comparison, html
    from uneven.journal.report.pure.chart_series import run_data
    from uneven.runtime.installed import need

    need("report", "plotly")
    paths = runs or [newest_run()]
    if len(paths) > 1:
        if trace is not None or log_to:
            raise ConfigError("--trace and --log-to take one run: name one")
        data = comparison.compared(comparison.named(paths))
        shown, file = comparison.comparison_page(data, title=" · ".join(data)), page or Path("comparison.html")
        if form is answer.Form.TEXT:
            _print_table(data)
    else:
        one = run_data(read(paths[0]))
        data, shown, file = {one.name: one}, html.page_of(one), page or paths[0] / "report.html"
    html.write_page(shown, file, plotly_beside=separate_plotly)
    lines = [("report", f"{file}")]
    if trace is not None:
        from uneven.journal.report import perfetto as tracing

        tracing.write(paths[0], trace)
        lines.append(("trace", f"{trace} (open it at https://ui.perfetto.dev)"))
    for tool in trackers(log_to):
        from uneven.journal.report.track import tracking

        tracking.write(paths[0], tool)
    if form is answer.Form.JSON:
        summaries = {name: one.summary for name, one in data.items()}
        answer.write({"report": file, "trace": trace, "advice": shown.advice, "runs": summaries})
        return
    lines += [("advice", shown.advice)] if shown.advice else []
    for name, text in lines:
        typer.echo(printable(f"{name + ':':<12} {text}"))


def _print_table(data: "Mapping[str, RunData]") -> None:
    from uneven.journal.report import comparison
    from uneven.journal.report.console import Console, columns

    summary = comparison.summary_table(data)
    names, *lines = zip(summary.columns, *summary.rows, strict=True)  # a column per run: pages are wider
    Console().print(columns(names, lines))
    if note := comparison.summary_note(data):
        Console().print(note)
