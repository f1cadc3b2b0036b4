"""Which worker to blame when several have ended, and how to say it. Imports no torch."""

from __future__ import annotations

import json
import math
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from uneven.errors import LaunchError, PeerError
from uneven.jobs.ending import signal_name

_CRASHES = {signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE}


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """A worker that did not end well.

    Attributes:
        where: its node, where it has a name.
        exit_code: −n for signal n.
        ended_s: when its end was noticed, Unix time; infinite if it had ended before it was found.
        told: what it wrote about its end itself, see :func:`uneven.world.report_failures`.
        killed_by: why somebody or something killed it, where that is known.
        stops: why the others cannot go on without it, where their policy would else let them.
        silent: that it was stopped or hung, and was killed for that.
        shown: whether what it printed is on this console.
    """

    rank: int
    pid: int
    exit_code: int
    where: str = ""
    ended_s: float = float("inf")
    told: Mapping[str, Any] = field(default_factory=dict)
    killed_by: str = ""
    stops: str = ""
    silent: str = ""
    shown: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """A worker that ended with exit code 0, perhaps before the others were through.

    Attributes:
        unclosed: that its session was open still, so that Python cannot have ended in order.
        begun: False where it had said that it was to train through the parameter server, and not that it does.
    """

    rank: int
    pid: int
    unclosed: bool
    begun: bool = True


def blame(
    deaths: Sequence[Death],
    *,
    first_s: float,
    shutdown_within_s: float,
    lost: Sequence[Death] = (),
    left: Sequence[Left] = (),
    goes_on: bool = False,
) -> LaunchError:
    """One line, about the worker that died first.

    Args:
        first_s: when the first end of any worker was noticed, Unix time.
        shutdown_within_s: how long workers may take to end when the launcher asks them to.
        lost: those without whom the others had gone on before.
        left: those that had ended before with exit code 0, and may be whom the others have missed.
        goes_on: whether the run does, with workers of other launchers.
    """
    first, *others = sorted(deaths, key=lambda death: _cause_first(death, first_s, shutdown_within_s))
    error = _said(first, goes_on)
    missed = [f"rank {one.rank} had missed it{_last_line(one)}" for one in others if first.silent and _trace(one)]
    lines = [str(error), *missed[:1], *([_before(lost)] if lost else [])]
    if _complains(first) and left:
        lines += [f"{_leaver(one)} before that, and may be whom it has missed" for one in left]
    return LaunchError("\n".join(lines), error.exit_code)


def gone(death: Death) -> str:
    """The line at the death of a worker without whom the others go on."""
    then = "nobody else was left here" if death.silent else "the others go on without it"
    return f"{_who(death)} {_how(death)[0]}; {then}{_cause(death)}"


def all_gone(lost: Sequence[Death]) -> LaunchError:
    """The others had gone on without each of these, and now nobody is left."""
    last = lost[-1]
    how, code = _how(last)
    message = f"{_who(last)} {how}, and nobody is left{_cause(last)}"
    return LaunchError(f"{message}\n{_before(lost[:-1])}" if lost[1:] else message, code)


def left_alone(lost: Sequence[Death], left: Sequence[Left]) -> LaunchError | None:
    """For one whose process ended with exit code 0 in the midst of its session, and who was missed or never trained."""
    quitters = [_leaver(one) for one in left if one.unclosed]
    if quitters and any(one.silent or _complains(one) for one in lost):
        return LaunchError(f"{', '.join(quitters)}, and the others have missed it\n{_before(lost)}")
    if never := [_leaver(one) for one in left if one.unclosed and not one.begun]:
        return LaunchError(f"{', '.join(never)}, before it trained; the others have come to the end without it")
    return None


def through_without(lost: Sequence[Death]) -> tuple[str, int]:
    """What to say, and to exit with, when the workers that were left have come to the end of the script.

    The code is 0: nothing has to be done again. It is that of rank 0 if that one was lost, for scripts evaluate and
    save there, so what was to be kept may be missing.
    """
    first = next((one for one in lost if one.rank == 0), None)
    code = 0 if first is None else _how(first)[1]
    why = "" if first is None else f"; the exit code is {code}, as scripts save on rank 0"
    return f"the run has come to its end without {_names(lost)}{why}", code


def told_in(path: Path) -> dict[str, Any]:
    """What a worker wrote about its end into this file; empty if there is none, or it cannot be understood."""
    try:
        data = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return {}  # it was killed while it wrote
    message = data.get("message") if isinstance(data, dict) else None
    return told_by(message)


def told_by(message: Any) -> dict[str, Any]:
    """The part that :func:`uneven.world.report_failures` adds to torch's message."""
    extra = message.get("extraInfo") if isinstance(message, dict) else None
    return extra if isinstance(extra, dict) else {}


def _said(death: Death, goes_on: bool) -> LaunchError:
    how, code = _how(death)
    then = "and no worker of this launcher is left; the run goes on" if goes_on else "so the run has been ended"
    message = f"{_who(death)} {how}, {then}"
    if death.stops:
        message += f": {death.stops}"
    return LaunchError(message + _cause(death), code)


def _cause(death: Death) -> str:
    if trace := _trace(death):
        refused = _last_line(death).startswith(": uneven.errors.") and not _complains(death)  # a message of its own
        above = "; its error is above" if refused else f"{_last_line(death)} (see above)"
        return above if death.shown else f"; its traceback:\n{trace}"
    if death.killed_by:
        return f": {death.killed_by}"
    if death.silent:
        return ""
    if death.exit_code == -signal.SIGKILL:
        return "; if nobody did that by hand, the machine was out of memory (see `dmesg`)"
    return "; what it had to say is above"


def _how(death: Death) -> tuple[str, int]:
    """In words, and as an exit code."""
    if death.silent:
        return f"{death.silent}, and was killed for that", 128 + signal.SIGKILL
    if death.exit_code < 0 and _trace(death):
        # Its end after the exception took long, so that the launcher ended it, or gloo's threads aborted it.
        return "ended with an uncaught exception", 1
    if death.exit_code < 0:
        return f"was killed by {signal_name(-death.exit_code)}", 128 - death.exit_code
    return f"ended with exit code {death.exit_code}", death.exit_code


def _who(death: Death) -> str:
    where = f"{death.where}, " if death.where else ""
    return f"rank {death.rank} ({where}process {death.pid})"


def _leaver(one: Left) -> str:
    how = "in the midst of its session (os._exit?)" if one.unclosed else "(a return or sys.exit that only it reaches?)"
    return f"rank {one.rank} (process {one.pid}) had ended with exit code 0 {how}"


def _complains(death: Death) -> bool:
    """Whether it ended because of somebody else."""
    return death.told.get("error") == PeerError.__name__


def _trace(death: Death) -> str:
    return str(death.told.get("py_callstack", "")).rstrip()


def _before(lost: Sequence[Death]) -> str:
    return f"before that, the others had gone on without {_names(lost)}"


def _names(lost: Sequence[Death]) -> str:
    return ", ".join(f"rank {one.rank} (it {_how(one)[0]}{_last_line(one)})" for one in lost)


def _last_line(death: Death) -> str:
    lines = _trace(death).splitlines()
    return f": {lines[-1]}" if lines else ""


def _cause_first(death: Death, first_s: float, shutdown_within_s: float) -> tuple[bool, bool, bool, float, bool]:
    """Sorts the deaths of one run so that the cause of the others comes first.

    Who was stopped comes before those that have missed it. Whoever complains about a peer is a consequence, and so is
    whoever was asked to end after somebody else had, with nothing to tell itself; whoever crashed or was killed is
    not, unless the launcher itself killed it, much later. Then the time counts: that of the exception if the worker
    wrote it down, else that of its end. Who ended before it had been found was the first; among those whose ends were
    noticed together, who was asked to end comes last.
    """
    crashed = -death.exit_code in _CRASHES and death.ended_s - first_s < shutdown_within_s / 2
    asked = death.exit_code == -signal.SIGTERM
    ended_s = 0.0 if math.isinf(death.ended_s) and not asked else death.ended_s
    began_s = min(float(death.told.get("timestamp", death.ended_s)), ended_s)
    consequence = _complains(death) or (asked and ended_s > first_s and not _trace(death))
    return not death.silent, consequence, not crashed, began_s, asked
