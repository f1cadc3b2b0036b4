"""The command ``uneven fleet``: train many models on shared data."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from uneven.cli.options import Devices, Engine, LogTo, devices_named, trackers
from uneven.fleet.pure.batch_rule import BatchRule
from uneven.fleet.timeout import TIMEOUT_S
from uneven.policy.core.printable import printable
from uneven.runtime.installed import need
from uneven.runtime.jobs.begun import DefaultFolder

if TYPE_CHECKING:
    from uneven.fleet import Result


def command(
    ensemble: Annotated[
        Path, typer.Argument(metavar="ENSEMBLE", help="A TOML file that names members and data.", show_default=False)
    ],
    devices: Devices = "auto",
    directory: Annotated[
        Path | None,
        typer.Option("--directory", help="Checkpoint folder. [default: runs/NAME of the file]", show_default=False),
    ] = None,
    batch_rule: Annotated[
        BatchRule,
        typer.Option(
            "--batch-rule",
            help="Global batch on m devices: as on one; m times, with the learning rate; m times, as in the paper.",
        ),
    ] = BatchRule.KEEP,
    engine: Engine = "local",
    timeout: Annotated[
        float,
        typer.Option("--timeout", metavar="SECONDS", help="Longest time for one sample, step or factory."),
    ] = TIMEOUT_S,
    report: Annotated[
        Path | None, typer.Option("--report", metavar="FILE", help="Write the plan over time and all curves as HTML.")
    ] = None,
    log_to: LogTo = None,
) -> None:
    """Train every member of ENSEMBLE, several at a time on shared data.

    After an interruption, the same command continues the work and trains no member twice.

    If a member fails, diverges (its loss is NaN) or hangs, the others are still trained, and the exit code is 1. The
    next start tries it again. A sample that cannot be read or hangs ends the run.

    \b
    Exit code:
      0    every member is trained
      1    some have failed; the table gives the reasons, the others are trained
      2    a wrong setting, or an error of the data, the checkpoints or the devices
      130  stopped with Ctrl-C

    \b
    Examples:
      uneven fleet ensemble.toml
      uneven fleet ensemble.toml --devices 4
      uneven fleet ensemble.toml --engine ray --directory /shared/runs/ensemble
      uneven fleet ensemble.toml --report ensemble.html
      uneven fleet ensemble.toml --log-to tensorboard:curves
      uneven fleet ensemble.toml --timeout 1800        # samples or steps that take minutes
    """
    # The file names factories of the user's modules, which are in the working directory.
    sys.path.insert(0, str(Path.cwd()))
    from uneven import fleet
    from uneven.fleet import ensemble_file

    tools = trackers(log_to)  # a missing tool raises before the training
    if report is not None:
        need("report", "plotly")
    asked = ensemble_file.read(ensemble)
    where = DefaultFolder(f"runs/{ensemble.stem}") if directory is None else directory
    options = fleet.Options(batch_rule=batch_rule, timeout_s=timeout)
    try:
        result = fleet.train(asked, devices=devices_named(devices), directory=where, options=options, engine=engine)
    except KeyboardInterrupt:
        typer.echo("\nstopped; the same command continues after the last finished pass", err=True)
        # 128 + SIGINT, as shells report it.
        raise typer.Exit(130) from None
    print(printable(str(result)))
    for tool in tools:
        result.track(tool)
    if report is not None:
        result.report(report)
    if result.failed:
        typer.echo(printable(_failures(result)), err=True)
        raise typer.Exit(1)


def _failures(result: Result) -> str:
    failed, trained = result.failed, [row for row in result.table if row.status == "trained"]
    lines = [f"error: {len(failed)} of {len(result.table)} members failed; the same command tries again:"]
    lines += [f"  {row.name}: {row.why}".replace("\n", "\n    ") for row in failed]
    if trained:
        lines.append("the others are trained; their best weights:")
        lines += [f"  {row.name}: {row.checkpoint}" for row in trained]
    return "\n".join(lines)
