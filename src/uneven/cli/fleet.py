"""The commands ``uneven fleet …``: train many models on shared data."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from uneven.cli import answer
from uneven.cli.help import group, verb
from uneven.cli.options import Devices, Engine, FolderOf, LogTo, Page, argument, devices_named, option, trackers
from uneven.errors import ConfigError
from uneven.fleet.pure.batch_rule import BatchRule
from uneven.fleet.timeout import TIMEOUT_S
from uneven.policy.core.printable import printable
from uneven.runtime.jobs.begun import DefaultFolder

if TYPE_CHECKING:
    from uneven.fleet import Result

app = group("Train many models together on shared data.")

File = Annotated[Path, argument("FILE", "A TOML file that names members and data.")]


@verb(app, "run")
def run(
    file: File,
    devices: Devices = "auto",
    run_dir: FolderOf = None,
    batch_rule: Annotated[
        BatchRule,
        option(
            "|".join(one.value for one in BatchRule),
            "Global batch on m devices: as on one; m times, with the learning rate; m times, as in the paper.",
            "--batch-rule",
        ),
    ] = BatchRule.KEEP,
    engine: Engine = "local",
    step_timeout: Annotated[
        float, option("SECONDS", "Longest time of one sample, step or factory.", "--step-timeout")
    ] = TIMEOUT_S,
    report: Page = None,
    log_to: LogTo = None,
    form: answer.Format = answer.Form.TEXT,
) -> None:
    """Train every member of FILE, several at a time on shared data.

    After an interruption, the same command continues the work and trains no member twice.

    If a member fails, diverges (its loss is NaN) or hangs, the others are still trained, and the exit code is 1. The
    next start tries it again. A sample that cannot be read or hangs ends the run.

    Exit codes: 0 every member is trained; 1 some have failed; 2 an error; 130 stopped with Ctrl-C.

    \b
    Examples:
      uneven fleet run ensemble.toml
      uneven fleet run ensemble.toml --devices 4 --report ensemble.html
      uneven fleet run ensemble.toml --engine ray --run-dir /shared/runs/ensemble
      uneven fleet run ensemble.toml --log-to tensorboard:curves
      uneven fleet run ensemble.toml --step-timeout 1800     samples or steps that take minutes
    """
    # The file names factories of the user's modules, which are in the working directory.
    sys.path.insert(0, str(Path.cwd()))
    from uneven import fleet
    from uneven.fleet import ensemble_file

    tools = trackers(log_to, report)  # a missing tool raises before the training
    asked, where = ensemble_file.read(file), _folder(file, run_dir)
    options = fleet.Options(batch_rule=batch_rule, timeout_s=step_timeout)
    try:
        result = fleet.train(asked, devices=devices_named(devices), directory=where, options=options, engine=engine)
    except KeyboardInterrupt:
        typer.echo("\nstopped; the same command continues after the last finished pass", err=True)
        # 128 + SIGINT, as shells report it.
        raise typer.Exit(130) from None
    answer.results(result, {"members": result.table}, form, report, tools)
    if result.failed:
        typer.echo(printable(_failures(result)), err=True)
        raise typer.Exit(1)


@verb(app, "show")
def show(file: File, run_dir: FolderOf = None, report: Page = None, form: answer.Format = answer.Form.TEXT) -> None:
    """Print the members of FILE as they are now.

    The command works during the training and after it.

    \b
    Examples:
      uneven fleet show ensemble.toml
      uneven fleet show ensemble.toml --report ensemble.html
    """
    sys.path.insert(0, str(Path.cwd()))
    from uneven.fleet import Options, Result, ensemble_file
    from uneven.fleet.engine.fleet_run import asked_for, code_in
    from uneven.fleet.engine.fleet_state import STATE, load
    from uneven.runtime.jobs.begun import folder_for

    trackers(None, report)
    ensemble = ensemble_file.read(file)
    folder = folder_for(_folder(file, run_dir), "fleet", code_in(ensemble))
    if not (folder / STATE).is_file():
        raise ConfigError(f"{folder} has no run of {file}: start one with `uneven fleet run {file}`")
    result = Result(ensemble, load(folder, asked_for(ensemble, Options())), folder)
    answer.results(result, {"members": result.table}, form, report)


def _folder(file: Path, run_dir: Path | None) -> Path | str:
    return DefaultFolder(f"runs/{file.stem}") if run_dir is None else run_dir


def _failures(result: "Result") -> str:
    failed, trained = result.failed, [row for row in result.table if row.status == "trained"]
    lines = [f"error: {len(failed)} of {len(result.table)} members failed; the same command tries again:"]
    lines += [f"  {row.name}: {row.why}".replace("\n", "\n    ") for row in failed]
    if trained:
        lines.append("the others are trained; their best weights:")
        lines += [f"  {row.name}: {row.checkpoint}" for row in trained]
    return "\n".join(lines)
