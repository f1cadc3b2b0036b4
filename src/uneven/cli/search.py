"""The command ``uneven search``: find settings worth training, and control a running search."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from uneven.cli.options import Devices, Engine, LogTo, devices_named, trackers
from uneven.errors import ConfigError
from uneven.policy.core.printable import printable
from uneven.runtime.installed import need
from uneven.runtime.jobs.begun import DefaultFolder

if TYPE_CHECKING:
    from uneven.search import SearchResult

_VERBS = ("stop", "resume", "clone")

What = Annotated[
    list[str],
    typer.Argument(
        metavar="FILE | forecast RUN CLUSTER | stop|resume|clone RUN TRIAL [KEY=VALUE]…",
        help="A TOML file with [search] and [space]. Or a recorded search and a cluster to simulate it on. Or a "
        "command for a trial of a running search.",
        show_default=False,
    ),
]
Directory = Annotated[
    Path | None,
    typer.Option("--directory", help="Folder of the search. [default: runs/NAME of the file]", show_default=False),
]
Trials = Annotated[
    int | None, typer.Option("--trials", help="Number of trials. [default: as in the file, or in the recorded search]")
]
WarmStart = Annotated[
    list[str] | None,
    typer.Option(
        "--warm-start",
        metavar="RUN",
        help="Start from the results of an earlier search, or of an Optuna storage (its URL). Repeatable.",
        show_default=False,
    ),
]
Report = Annotated[
    Path | None, typer.Option("--report", metavar="FILE", help="Write curves, settings and devices as HTML.")
]
TensorBoard = Annotated[
    Path | None, typer.Option("--tensorboard", metavar="DIR", help="Write curves and settings for TensorBoard.")
]


def command(
    what: What,
    devices: Devices = "auto",
    directory: Directory = None,
    engine: Engine = "local",
    trials: Trials = None,
    warm_start: WarmStart = None,
    report: Report = None,
    tensorboard: TensorBoard = None,
    log_to: LogTo = None,
) -> None:
    """Find out which settings are worth training: stop, pause and resume trials as they learn.

    After an interruption, also by kill -9, the same command continues with the scheduler's state.

    From another terminal, you can stop a trial of a running search, resume one, or clone one's state with another
    setting. Only the user who started the search can control it.

    forecast simulates a recorded search in virtual time on 1, 2, … nodes of a described cluster, one trial per node. It
    prints the duration for each number of nodes and the cheapest number.

    \b
    Exit code:
      0    the search has finished
      1    the search has finished, but some trials crashed or diverged
      2    a wrong setting, or an error
      130  stopped with Ctrl-C

    \b
    Examples:
      uneven search search.toml
      uneven search search.toml --devices 4 --report search.html
      uneven search wider.toml --warm-start runs/search
      uneven search stop runs/search 17
      uneven search clone runs/search 17 lr=0.003
      uneven search forecast runs/search cluster.toml --trials 64
    """
    if what[0] == "forecast":
        if devices != "auto" or engine != "local" or any((directory, warm_start, report, tensorboard, log_to)):
            raise ConfigError("forecast takes --trials and no other option: leave the others out")
        from uneven.cli import search_forecast

        search_forecast.show(what[1:], trials)
        return
    if what[0] in _VERBS:
        _tell(what)
        return
    if len(what) > 1:
        raise ConfigError(f"{' '.join(what[1:])}: give one FILE, or begin with forecast, {', '.join(_VERBS)}")
    tools = trackers(log_to, tensorboard)  # a missing tool raises before the search
    if report is not None:
        need("report", "plotly")
    more = {"trials": trials, "warm_start": warm_start, "directory": directory}
    result = _searched(Path(what[0]), devices_named(devices), engine, more)
    print(printable(str(result)))
    if report is not None:
        result.report(report)
    for tool in tools:
        result.track(tool)
    if result.failed:
        typer.echo("error: some trials failed; the table says why", err=True)
        raise typer.Exit(1)


def _searched(file: Path, devices: str | int | list[str], engine: str, more: dict[str, Any]) -> SearchResult:
    sys.path.insert(0, str(Path.cwd()))
    from uneven import search
    from uneven.search import search_file

    given = {"directory": DefaultFolder(f"runs/{file.stem}"), **search_file.read(file)}
    given |= {name: value for name, value in more.items() if value is not None}
    try:
        return search.run(**given, devices=devices, engine=engine)
    except KeyboardInterrupt:
        typer.echo("\nstopped; the same command continues the search", err=True)
        raise typer.Exit(130) from None


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
