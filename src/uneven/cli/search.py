"""The commands ``uneven search …``: find settings worth training, and control a running search."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from uneven.cli import answer, complete
from uneven.cli.help import group, verb
from uneven.cli.options import Devices, Engine, FolderOf, LogTo, Page, argument, devices_named, option, trackers
from uneven.errors import ConfigError
from uneven.policy.core.printable import printable
from uneven.runtime.jobs.begun import DefaultFolder

if TYPE_CHECKING:
    from uneven.search import SearchResult

app = group("Find out which settings are worth training: stop, pause and resume trials as they learn.")

Folder = Annotated[Path, argument("RUN", "Folder of the search.", autocompletion=complete.runs)]
Trial = Annotated[int, argument("TRIAL", "Number of the trial.", min=0)]
Trials = Annotated[int | None, option("N", "Number of trials. [default: as in the file]", "--trials", min=1)]


@verb(app, "run")
def run(
    file: Annotated[Path, argument("FILE", "A TOML file with [search] and [space].")],
    devices: Devices = "auto",
    run_dir: FolderOf = None,
    engine: Engine = "local",
    trials: Trials = None,
    warm_start: Annotated[
        list[str] | None,
        option(
            "RUN",
            "Start from the results of an earlier search, or of an Optuna storage (its URL). Repeatable.",
            "--warm-start",
        ),
    ] = None,
    report: Page = None,
    log_to: LogTo = None,
    form: answer.Format = answer.Form.TEXT,
) -> None:
    """Search for the best settings of a training.

    After an interruption, also by kill -9, the same command continues with the scheduler's state.

    Exit codes: 0 finished; 1 finished, but trials crashed or diverged; 2 an error; 130 stopped with Ctrl-C.

    \b
    Examples:
      uneven search run search.toml
      uneven search run search.toml --devices 4 --report search.html
      uneven search run wider.toml --warm-start runs/search
    """
    tools = trackers(log_to, report)  # a missing tool raises before the search
    more = {"trials": trials, "warm_start": warm_start, "directory": run_dir}
    result = _searched(file, devices_named(devices), engine, more)
    answer.results(result, {"trials": result.rows}, form, report, tools)
    if result.failed:
        typer.echo("error: some trials failed; the table gives the reasons", err=True)
        raise typer.Exit(1)


@verb(app, "show")
def show(run: Folder, report: Page = None, log_to: LogTo = None, form: answer.Format = answer.Form.TEXT) -> None:
    """Print the trials of a search, the best first.

    The search may have finished or not.

    \b
    Examples:
      uneven search show runs/search
      uneven search show runs/search --report search.html
      uneven search show runs/search --format json
    """
    from uneven.search import SearchResult
    from uneven.search.warm_start import reopened

    tools = trackers(log_to, report)
    result = SearchResult(reopened(run).core, run)
    answer.results(result, {"trials": result.rows}, form, report, tools)


@verb(app, "stop")
def stop(run: Folder, trial: Trial) -> None:
    """Stop a trial of a running search.

    Only the user who started the search can control it.

    \b
    Example:
      uneven search stop runs/search 17
    """
    _send(run, "stop", trial, {})


@verb(app, "resume")
def resume(run: Folder, trial: Trial) -> None:
    """Resume a stopped or finished trial.

    The search must be running. Only the user who started it can control it.

    \b
    Example:
      uneven search resume runs/search 17
    """
    _send(run, "resume", trial, {})


@verb(app, "clone")
def clone(
    run: Folder,
    trial: Trial,
    settings: Annotated[list[str] | None, argument("[KEY=VALUE]…", "Settings that differ from the trial's.")] = None,
) -> None:
    """Start a trial from the state of another one.

    The search must be running, and settings may differ. Only the user who started the search can control it.

    \b
    Example:
      uneven search clone runs/search 17 lr=0.003
    """
    changes: dict[str, Any] = {}
    for pair in settings or ():
        name, equals, value = pair.partition("=")
        if not (name and equals and value):
            raise ConfigError(f"{pair}: give KEY=VALUE")
        changes[name] = _value(value)
    _send(run, "clone", trial, changes)


@verb(app, "forecast")
def forecast(
    run: Folder,
    cluster: Annotated[
        str,
        argument(
            "CLUSTER", "A TOML file, or the name of a cluster that comes with uneven.", autocompletion=complete.clusters
        ),
    ],
    trials: Annotated[int | None, option("N", "Number of trials. [default: as recorded]", "--trials", min=1)] = None,
    form: answer.Format = answer.Form.TEXT,
) -> None:
    """Forecast a recorded search on the nodes of a cluster.

    The command simulates the search in virtual time on 1, 2, … nodes, one trial per node. It prints the duration for
    each number of nodes, and the cheapest number.

    \b
    Example:
      uneven search forecast runs/search cluster.toml --trials 64
    """
    from uneven.cli import search_forecast

    search_forecast.show(run, cluster, trials, form)


def _searched(file: Path, devices: str | int | list[str], engine: str, more: dict[str, Any]) -> "SearchResult":
    # The file names functions of the user's modules, which are in the working directory.
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


def _send(run: Path, command: str, trial: int, changes: dict[str, Any]) -> None:
    from uneven.search.control import tell

    print(printable(tell(run, command, trial, changes)))


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
