"""``uneven fleet``: many models on shared data."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from uneven.core.text import printable
from uneven.fleet.batch_rule import BatchRule


def command(
    ensemble: Annotated[
        Path, typer.Argument(metavar="ENSEMBLE", help="A TOML file that names members and data.", show_default=False)
    ],
    devices: Annotated[
        str, typer.Option("--devices", help="auto, a number of CPU slots, or names: cuda:0,cuda:1.")
    ] = "auto",
    directory: Annotated[
        Path | None,
        typer.Option("--directory", help="Where checkpoints lie. [default: runs/NAME of the file]", show_default=False),
    ] = None,
    batch_rule: Annotated[
        BatchRule,
        typer.Option(
            "--batch-rule",
            help="A member's batch on m devices: as on one; m times, with the learning rate; m times, as in the paper.",
        ),
    ] = BatchRule.KEEP,
    engine: Annotated[
        str, typer.Option("--engine", help="local, or ray for the devices of a Ray cluster (the extra ray).")
    ] = "local",
    report: Annotated[
        Path | None, typer.Option("--report", metavar="FILE", help="Write the plan over time and every curve as HTML.")
    ] = None,
) -> None:
    """Train every member of ENSEMBLE, several at a time on shared data.

    Stopped at any moment, the same command goes on where it was, and trains no member twice.

    \b
    Examples:
      uneven fleet ensemble.toml
      uneven fleet ensemble.toml --devices 4
      uneven fleet ensemble.toml --engine ray --directory /shared/runs/ensemble
      uneven fleet ensemble.toml --report ensemble.html
    """
    sys.path.insert(0, str(Path.cwd()))
    from uneven import fleet
    from uneven.fleet import ensemble_file

    asked = ensemble_file.read(ensemble)
    wanted: str | int | list[str] = devices
    if devices.isdecimal():
        wanted = int(devices)
    elif devices != "auto":
        wanted = devices.split(",")
    where = Path("runs") / ensemble.stem if directory is None else directory
    options = fleet.Options(batch_rule=batch_rule)
    result = fleet.train(asked, devices=wanted, directory=where, options=options, engine=engine)
    print(printable(str(result)))
    if report is not None:
        result.report(report)
