"""The command ``uneven why``: who is slow in a training, why, and the gain of each remedy."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Annotated

from uneven.cli import answer
from uneven.cli.options import argument, option, switch
from uneven.errors import ConfigError, JournalError, LaunchError, access


def why(
    target: Annotated[
        list[str] | None,
        argument(
            "[RUN] | -- COMMAND [ARG]…",
            "A run directory, or the command that trains. [default: the newest in ./runs]",
            show_default=False,
        ),
    ] = None,
    run_dir: Annotated[
        Path | None, option("DIR", "Directory for the journal. [default: a new one in ./runs]", "--run-dir")
    ] = None,
    trial: Annotated[
        bool, switch("Compare 200 steps of `uneven run` with 200 steps of the best remedy.", "--try")
    ] = False,
    live: Annotated[
        bool, switch("Renew the explanation during the training, from its newest steps.", "--live")
    ] = False,
    environment: Annotated[
        bool, switch("Print the variable that attaches workers on another machine to RUN, and exit.", "--environment")
    ] = False,
    form: answer.Format = answer.Form.TEXT,
) -> None:
    """Explain which worker of a training is slow, why, and the gain of each remedy; the script stays as it is.

    COMMAND is any launch of PyTorch: torchrun, python -m torch.distributed.run, accelerate launch, uneven run, srun or
    a plain python. Its output and its exit code are its own; the explanation follows when it ends. The measurement
    needs no root, changes no number of the training, and switches itself off if anything in it fails.

    With --live a COMMAND prints the explanation every ten seconds, below the output of the training. For a RUN, in a
    second terminal, the explanation is renewed in place until the run ends. `uneven watch --web` shows it, too.

    With --try the command runs a script with a session twice, for 200 steps each: as it is, then with the option that
    promises most. It prints the promised and the measured gain. The script runs in an empty folder, which is removed
    afterwards, also after Ctrl-C. So relative paths overwrite nothing, and data needs an absolute path. Files with an
    absolute path are written as usual.

    \b
    Examples:
      uneven why -- torchrun --nproc-per-node 4 train.py
      uneven why                                    explain the newest run again
      uneven why runs/NAME
      uneven why --live runs/NAME
      uneven why --try -- uneven run --nproc 4 train.py --data /data/images
      uneven why --format json runs/NAME
      eval "$(uneven why --environment runs/NAME)"  on another machine, before its launcher
    """
    from uneven.journal.reader import newest_run, rank_paths

    if environment and not target:
        raise ConfigError("uneven why --environment: name the run directory, as `uneven why --environment runs/NAME`")
    if trial and not target:
        raise ConfigError("uneven why --try: name the command, as `uneven why --try -- uneven run train.py`")
    target = target or [str(newest_run())]
    recorded = len(target) == 1 and shutil.which(target[0]) is None
    if environment:
        print(f"export PYTHONPATH={shlex.quote(python_path(Path(target[0])))}")
        return
    if live and form is answer.Form.JSON:
        raise ConfigError("--live with --format json: leave one out")
    if recorded:
        if live:
            from uneven.cli.why_live import watch

            watch(Path(target[0]))
        show(Path(target[0]), form)
        return
    from uneven.runtime import rundir
    from uneven.runtime.jobs.ending import signal_name

    if trial:
        from uneven.cli.why_try import tried

        made = tried(target, run_dir or rundir.new_path(_script(target), datetime.now()))
        if form is answer.Form.JSON:
            answer.write(made)
        else:
            print(made.text)
        return
    if shutil.which(target[0]) is None:
        raise ConfigError(f"uneven why -- {target[0]}: it is not a run directory or a command")
    run = run_dir or rundir.new_path(_script(target), datetime.now())
    command = _with_run_directory(target, run)
    if command == target:
        rundir.create(run, {})
    code = _train(command, run, live=live)
    if not any(path.stat().st_size for path in rank_paths(run).values()):
        print(
            "uneven why: no worker took a step with torch that could be measured (does the command start Python with "
            "-I or -E, or in an environment without uneven?)",
            file=sys.stderr,
        )
    else:
        show(run, form)
    if code:
        how = f"was killed by {signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
        raise LaunchError(f"the command {how}", exit_code=code if code > 0 else 128 - code)


def python_path(run: Path) -> str:
    """Write the file that attaches the measurement into a run, and return the PYTHONPATH that leads to it."""
    folder = run.absolute() / "attach"
    with access(f"write {folder}", JournalError):
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(__file__).parents[1] / "why" / "boot" / "sitecustomize.py", folder)
    return os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))


def _script(target: list[str]) -> str:
    return Path(next((word for word in target if word.endswith(".py")), target[0])).stem + "-why"


def _with_run_directory(target: list[str], run: Path) -> list[str]:
    """Return the command; a session of uneven writes its journal into the same directory."""
    if Path(target[0]).name == "uneven" and target[1:2] == ["run"] and "--run-dir" not in target:
        return [*target[:2], "--run-dir", str(run), *target[2:]]
    return target


def _train(command: list[str], run: Path, *, live: bool) -> int:
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": python_path(run)})

    def ended(within_s: float | None) -> bool:
        with suppress(subprocess.TimeoutExpired):
            process.wait(within_s)
        return process.returncode is not None

    signal.signal(signal.SIGTERM, lambda *_: process.terminate())  # ends the training, not only its observer
    before = signal.signal(signal.SIGINT, lambda *_: None)  # it ends the training, then the explanation follows
    if live:
        from uneven.cli.why_live import follow
        from uneven.journal.report.console import Console

        follow(run, ended, Console(), in_place=False)
    ended(None)
    signal.signal(signal.SIGINT, before)
    return process.returncode


def show(run: Path, form: answer.Form = answer.Form.TEXT) -> None:
    """Print the explanation of a run."""
    from uneven.cli.why_page import as_text
    from uneven.why.explanation import explain

    found = explain(run)
    if form is answer.Form.JSON:
        answer.write(found)
    else:
        print(as_text(found))
