"""``uneven search``: which settings are worth training, and a word to a search that runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from uneven.cli.options import Devices, Engine, devices_named
from uneven.core.text import printable
from uneven.errors import ConfigError

_VERBS = ("stop", "resume", "clone")


def command(
    what: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE | stop|resume|clone RUN TRIAL [KEY=VALUE]…",
            help="A TOML file with [search] and [space]; or what to do with a trial of a search that runs.",
            show_default=False,
        ),
    ],
    devices: Devices = "auto",
    directory: Annotated[
        Path | None,
        typer.Option(
            "--directory", help="Where events and states lie. [default: runs/NAME of the file]", show_default=False
        ),
    ] = None,
    engine: Engine = "local",
    trials: Annotated[
        int | None, typer.Option("--trials", help="How many are tried, instead of what the file says.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option("--report", metavar="FILE", help="Write curves, settings and devices as HTML.")
    ] = None,
) -> None:
    """Find out which settings are worth training: stop, pause and resume trials as they learn.

    Stopped at any moment, also by kill -9, the same command goes on where it was, with the scheduler's memory.

    At another terminal, a search that runs is told to stop a trial, to resume one, or to go on from one's state with
    another setting. Only the user who runs it is heard.

    \b
    Exit code:
      0    the search is over
      1    it is over, and some trials have crashed or diverged
      2    refused, or ended by an error
      130  stopped with Ctrl-C

    \b
    Examples:
      uneven search search.toml
      uneven search search.toml --devices 4 --report search.html
      uneven search stop runs/search 17
      uneven search clone runs/search 17 lr=0.003
    """
    if what[0] in _VERBS:
        _tell(what)
        return
    if len(what) > 1:
        raise ConfigError(f"{' '.join(what[1:])}: give one FILE, or begin with {', '.join(_VERBS)}")
    sys.path.insert(0, str(Path.cwd()))
    from uneven import search
    from uneven.search import search_file

    file = Path(what[0])
    given = search_file.read(file)
    if trials is not None:
        given["trials"] = trials
    where = Path("runs") / file.stem if directory is None else directory
    try:
        result = search.run(**given, devices=devices_named(devices), directory=where, engine=engine)
    except KeyboardInterrupt:
        typer.echo(f"\nstopped; the same command goes on with what is kept in {where}", err=True)
        raise typer.Exit(130) from None
    print(printable(str(result)))
    if report is not None:
        result.report(report)
    if result.failed:
        lines = [f"  trial {row.number}: {row.why.splitlines()[-1]}" for row in result.failed]
        typer.echo(
            printable("\n".join([f"error: {len(lines)} of {len(result.rows)} trials failed:", *lines])), err=True
        )
        raise typer.Exit(1)


def _tell(what: list[str]) -> None:
    from uneven.search.control import tell

    if len(what) < 3 or not what[2].isdecimal():
        raise ConfigError(f"{' '.join(what)}: give a search's directory and a trial's number")
    verb, run, trial, *pairs = what
    changes: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not (name and equals and value):
            raise ConfigError(f"{pair}: give KEY=VALUE")
        changes[name] = _value(value)
    if changes and verb != "clone":
        raise ConfigError(f"{verb} takes no settings; clone does: uneven search clone {run} {trial} {' '.join(pairs)}")
    print(printable(tell(Path(run), verb, int(trial), changes)))


def _value(said: str) -> Any:
    try:
        return json.loads(said)
    except ValueError:
        return said
