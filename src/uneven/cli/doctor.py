"""``uneven doctor``: what this machine can and cannot do, each line with its consequence or cure."""

from __future__ import annotations

import json
import os
from dataclasses import asdict

import typer
from rich.table import Table
from rich.text import Text

from uneven.cli.findings import Finding, Level, findings
from uneven.emulate import state
from uneven.errors import ConfigError
from uneven.report.console import Console

_STYLES = {Level.GOOD: "green", Level.NOTE: "yellow", Level.MISSING: "bold red"}


def doctor(
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object, for a bug report."),
    clean: bool = typer.Option(
        False, "--clean", help="Only remove what `uneven emulate` left when it was killed, and say what that was."
    ),
) -> None:
    """Report what this machine can and cannot do.

    Each line is a finding, and what follows from it or cures it. The exit code is 0 if training on several workers
    works here, else 1. Two small processes start for a moment to try torch and gloo.
    """
    if clean:
        _clean()
        return
    with Console(stderr=True).status("trying torch and gloo with two processes …"):
        found = findings()
    works = all(finding.level is not Level.MISSING for finding in found)
    if as_json:
        rows = [{**asdict(finding), "level": finding.level.value} for finding in found]
        typer.echo(json.dumps({"works": works, "findings": rows}, ensure_ascii=False))
    else:
        show(found, Console(highlight=False))
    raise typer.Exit(0 if works else 1)


def _clean() -> None:
    """Remove what is left of emulations whose process has ended; those that run are not touched."""
    if os.geteuid() != 0:
        raise ConfigError("doctor --clean: only root can have left something, and only root can remove it; use sudo")
    removed = state.clean()
    for one in removed:
        typer.echo(f"removed what was left of {one}")
    if not removed:
        typer.echo("nothing was left of any emulation")


def show(found: list[Finding], console: Console) -> None:
    """Print the findings, one to two lines each, and a verdict."""
    table = Table.grid(padding=(0, 2))
    for finding in found:
        words = Text.assemble(finding.found, "\n", (f"→ {finding.consequence}", "dim"))
        table.add_row(Text(finding.level.value, _STYLES[finding.level]), Text(finding.topic, "bold"), words)
    console.print(table)
    missing = ", ".join(finding.topic for finding in found if finding.level is Level.MISSING)
    verdict = f"Several workers cannot train here: {missing}." if missing else "Several workers can train here."
    console.print(Text(f"\n{verdict}", style="bold red" if missing else "bold green"))
