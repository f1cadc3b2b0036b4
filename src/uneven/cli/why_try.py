"""The trial of ``uneven why --try``: a script runs as it is, then with the best remedy that an option applies."""

import os
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from uneven import journal
from uneven.cli.why_page import as_text
from uneven.errors import ConfigError, LaunchError
from uneven.journal.pure.metrics import Iteration
from uneven.journal.reader import Follower
from uneven.policy.core.records import RunRecord, StepRecord
from uneven.runtime.jobs.command import Command
from uneven.why.explanation import explain
from uneven.why.pure.findings import Explanation, Remedy

STEPS = 200  # of each run
_SETTLING = 50  # first steps that are not compared: memory is allocated, shares move
_LOOK_EVERY_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredGain:
    """The gain of a remedy: promised by a simulation of the run as it is, and measured."""

    remedy: Remedy
    measured: float  # throughput with it ÷ throughput without
    command: str

    @property
    def text(self) -> str:
        one = self.remedy
        return (
            f"{one.words}: promised {one.gain:.2f} × ({one.least:.2f} to {one.most:.2f}), "
            f"measured {self.measured:.2f} ×\n  {self.command}"
        )


def best(found: Explanation) -> Remedy | None:
    """Return the remedy with the greatest gain among those that options of ``uneven run`` apply."""
    return max((one for one in found.remedies if options_of(one)), key=lambda one: one.gain, default=None)


def options_of(remedy: Remedy) -> list[str]:
    """Return the options of a remedy's ``uneven run [OPTION]… SCRIPT``."""
    return shlex.split(remedy.command)[2:-1]


def throughput(iterations: Sequence[Iteration]) -> float:
    """Return the samples per second once a run has settled."""
    kept = iterations[min(_SETTLING, len(iterations) // 2) : STEPS]
    return journal.summarize(kept).mean_per_s


@dataclass(frozen=True, slots=True)
class RunCommand:
    """A command ``uneven run [OPTION]… SCRIPT [ARG]…``, divided in front of the script."""

    options: tuple[str, ...]
    target: tuple[str, ...]
    module: bool

    @classmethod
    def of(cls, command: Sequence[str]) -> "RunCommand":
        """Divide a command; raise ConfigError if it is another one."""
        if Path(command[0]).name != "uneven" or command[1:2] != ["run"]:
            raise ConfigError(
                f"uneven why --try -- {' '.join(command[:2])} …: only `uneven run` passes a remedy on to a session: "
                f"write uneven why --try -- uneven run --nproc N SCRIPT"
            )
        import typer

        from uneven.cli import application

        run: Any = typer.main.get_command(application(["run"]))
        given = list(command[2:])
        known = run.commands["run"].make_context("run", list(given), resilient_parsing=True).params
        target = tuple(known["target"] or ())
        options = given[: len(given) - len(target)]
        return cls(tuple(one for one in options if one != "--"), target, bool(known["module"]))

    def line(self, *added: str) -> list[str]:
        """Return the command with more options; later ones override earlier ones."""
        return ["uneven", "run", *self.options, *added, *self.target]

    def anywhere(self) -> "RunCommand":
        """Return the command for another working directory."""
        first, *rest = self.target
        return self if self.module else RunCommand(self.options, (str(Path(first).absolute()), *rest), False)


def tried(command: Sequence[str], run: Path) -> MeasuredGain:
    """Run a script as it is and with its best remedy, and print the explanation in between.

    Both runs have a new, empty working directory, which is removed, so relative paths overwrite nothing.

    Args:
        command: ``uneven run``, its options, the script and its arguments.
        run: the directory for both runs; it must not exist.

    Raises:
        ConfigError: another command, a script without a session, or no remedy that can be tried.
        LaunchError: the script has failed, or Ctrl-C has ended the trial.
    """
    asked = RunCommand.of(command)
    script = asked.anywhere()
    before, after = run / "as-it-is", run / "with-remedy"
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        _record(script.line("--run-dir", str(before.absolute())), before)
        found = explain(before)
        _say(as_text(found) + "\n")
        remedy = best(found)
        if remedy is None:
            raise ConfigError(f"no remedy can be tried: {_reason(before)}")
        _say(f"uneven why: now with {shlex.join(options_of(remedy))}")
        _record(script.line(*options_of(remedy), "--run-dir", str(after.absolute())), after)
    except KeyboardInterrupt:
        raise LaunchError(f"the trial was stopped; the recorded steps are in {run}", exit_code=130) from None
    gain = throughput(_iterations(after)) / throughput(_iterations(before))
    return MeasuredGain(remedy=remedy, measured=gain, command=shlex.join(asked.line(*options_of(remedy))))


def _record(line: list[str], run: Path) -> None:
    """Run a script until it has recorded enough steps, or to its end."""
    from uneven.cli.why import python_path

    steps = 0
    follower = Follower(run)
    paths = [python_path(run), os.getcwd()]  # `-m package.train` is found from here
    with tempfile.TemporaryDirectory(prefix="uneven-try-") as folder:
        for settings in Path().glob("*.toml"):
            shutil.copy(settings, folder)
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        given = [sys.executable, "-m", *line]
        with Command("the trial", given, env=env, directory=Path(folder), stdout=sys.stderr) as process:
            while steps < STEPS and process.wait(_LOOK_EVERY_S) is None:
                for one in follower.poll():
                    steps = max(steps, one.iteration + 1) if isinstance(one, StepRecord) else steps
            ending = process.ending
            if ending is None:
                _say(f"uneven why: {steps} steps are recorded, so the run is stopped")
    if ending is not None and ending.code:
        raise LaunchError(
            f"the script failed after {steps} steps. It ran in an empty folder, so its data needs an absolute path",
            exit_code=ending.code if ending.code > 0 else 128 - ending.code,
        )


def _say(text: str) -> None:
    """Print a line with the output of the script; the result is alone on the standard output."""
    print(text, file=sys.stderr, flush=True)


def _iterations(run: Path) -> list[Iteration]:
    return journal.iterations(journal.read(run).records())


def _reason(run: Path) -> str:
    starts = [one for one in journal.read(run).records() if isinstance(one, RunRecord)]
    if any(one.settings.get("why") for one in starts):
        return "the script makes no uneven.Session()"
    return "no option of `uneven run` promises a gain"
