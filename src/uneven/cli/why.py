"""The command ``uneven why``: who is slow in a training, why, and the gain of each remedy."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from uneven.cli import answer
from uneven.errors import ConfigError, LaunchError


def why(
    target: Annotated[
        list[str],
        typer.Argument(metavar="RUN | -- COMMAND [ARG]…", help="A run directory, or the command that trains."),
    ],
    run_dir: Annotated[
        Path | None,
        typer.Option("--run-dir", metavar="DIR", help="Directory for the journal. [default: a new one in ./runs]"),
    ] = None,
    live: Annotated[bool, typer.Option("--live", help="Print the explanation again every ten seconds.")] = False,
    environment: Annotated[
        bool,
        typer.Option(
            "--environment",
            help="Print the two variables for RUN that a launcher on another machine must set, and exit.",
        ),
    ] = False,
    form: answer.Format = answer.Form.TEXT,
) -> None:
    """Explain which worker of a training is slow, why, and the gain of each remedy; the script stays as it is.

    COMMAND is any launch of PyTorch: torchrun, python -m torch.distributed.run, accelerate launch, uneven run, srun or
    a plain python. Its output and its exit code are its own; the explanation follows when it ends. The measurement
    needs no root, changes no number of the training, and switches itself off if anything in it fails.

    \b
    Examples:
      uneven why -- torchrun --nproc-per-node 4 train.py
      uneven why --live -- torchrun --nproc-per-node 4 train.py
      uneven why runs/NAME                          explain a recorded run again
      uneven why --format json runs/NAME
      eval "$(uneven why --environment runs/NAME)"  on another machine, before its launcher
    """
    recorded = len(target) == 1 and shutil.which(target[0]) is None
    if environment:
        run = Path(target[0]).absolute()
        for name, value in variables(run).items():
            print(f"export {name}={shlex.quote(value)}")
        return
    if recorded:
        show(Path(target[0]), form)
        return
    from uneven.runtime import rundir

    if shutil.which(target[0]) is None:
        raise ConfigError(f"uneven why -- {target[0]}: it is not a run directory or a command")
    run = run_dir or rundir.new_path(_script(target), datetime.now())
    command = _with_run_directory(target, run)
    if command == target:
        rundir.create(run, {})
    code = _train(command, run, live=live)
    if not any((run / "journal").glob("rank*.jsonl")):
        print(
            "uneven why: no worker took a step with torch that could be measured (does the command start Python with "
            "-I or -E, or in an environment without uneven?)",
            file=sys.stderr,
        )
    else:
        show(run, form)
    if code:
        raise LaunchError(f"the command ended with exit code {code}", exit_code=code)


def variables(run: Path) -> dict[str, str]:
    """Return the environment that attaches the measurement to each Python process of a launcher."""
    boot = Path(__file__).parents[1] / "why" / "boot"
    paths = [str(boot), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {"UNEVEN_WHY": str(run.absolute()), "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}


def _script(target: list[str]) -> str:
    return Path(next((word for word in target if word.endswith(".py")), target[0])).stem + "-why"


def _with_run_directory(target: list[str], run: Path) -> list[str]:
    """Return the command; a session of uneven writes its journal into the same directory."""
    if Path(target[0]).name == "uneven" and target[1:2] == ["run"] and "--run-dir" not in target:
        return [*target[:2], "--run-dir", str(run), *target[2:]]
    return target


def _train(command: list[str], run: Path, *, live: bool) -> int:
    process = subprocess.Popen(command, env={**os.environ, **variables(run)})
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())  # ends the training, not only its observer
    due_s = time.monotonic() + 10.0
    while True:
        try:
            return process.wait(timeout=1.0 if live else None)
        except subprocess.TimeoutExpired:
            if time.monotonic() >= due_s and any((run / "journal").glob("rank*.jsonl")):
                show(run, remedies=False)
                due_s = time.monotonic() + 10.0
        except KeyboardInterrupt:
            pass  # the command has the signal as well; it ends, and the explanation follows


def show(run: Path, form: answer.Form = answer.Form.TEXT, *, remedies: bool = True) -> None:
    """Print the explanation of a run."""
    from uneven.cli.why_page import as_text
    from uneven.why.explain import explain

    found = explain(run, remedies=remedies)
    if form is answer.Form.JSON:
        answer.write(found)
    else:
        print(as_text(found))
