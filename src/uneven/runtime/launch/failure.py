"""Find the worker that caused a failure and describe it. Imports no torch."""

import json
import math
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from uneven.errors import LaunchError, PeerError
from uneven.runtime.jobs.ending import signal_name
from uneven.runtime.system import KILL, signals

_CRASHES = signals("SIGKILL", "SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE")


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """A worker's abnormal end."""

    rank: int
    pid: int
    exit_code: int  # −n for signal n
    where: str = ""  # the name of its node, if it has one
    ended_s: float = float("inf")  # when its end was noticed, Unix time; infinite if it had ended before it was found
    told: Mapping[str, Any] = field(default_factory=dict)  # its own report, see uneven.runtime.world.report_failures
    killed_by: str = ""  # the reason why it was killed, if known
    stops: str = ""  # the reason why the others cannot continue without it although their policy allows that
    silent: str = ""  # the observation (stopped or hanging) for which it was killed
    shown: bool = True  # True if its output is on this console


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """A worker's end with exit code 0, possibly before the others finished."""

    rank: int
    pid: int
    unclosed: bool  # its session was still open, so Python did not end in order
    begun: bool = True  # False if it announced training with the parameter server and did not start it


def blame(
    deaths: Sequence[Death],
    *,
    first_s: float,  # when the first end of any worker was noticed, Unix time
    shutdown_within_s: float,
    lost: Sequence[Death] = (),  # earlier deaths, which the run tolerated
    left: Sequence[Left] = (),  # earlier ends with exit code 0, whose absence may be the cause
    then: str = "so the run has been ended",  # the consequence of the death
) -> LaunchError:
    """Return the error for the worker that died first."""
    first, *others = sorted(deaths, key=lambda death: _cause_first(death, first_s, shutdown_within_s))
    error = _said(first, then)
    missed = [f"rank {one.rank} had waited for it{_last_line(one)}" for one in others if first.silent and _trace(one)]
    lines = [str(error), *missed[:1], *([_before(lost)] if lost else [])]
    if _complains(first) and left:
        lines += [f"{_leaver(one)} before that; perhaps the others waited for it" for one in left]
    return LaunchError("\n".join(lines), error.exit_code)


def gone(death: Death) -> str:
    then = "no other worker is left here" if death.silent else "the others continue without it"
    return f"{_who(death)} {_how(death)[0]}; {then}{_cause(death)}"


def all_gone(lost: Sequence[Death], *, here: bool = False) -> LaunchError:
    """Return the error for a run in which each death was tolerated until no worker was left; ``here``: on this machine
    of several."""
    last = lost[-1]
    how, code = _how(last)
    message = f"{_who(last)} {how}, and {'no worker of this launcher' if here else 'no worker'} is left{_cause(last)}"
    return LaunchError(f"{message}\n{_before(lost[:-1])}" if lost[1:] else message, code)


def left_alone(lost: Sequence[Death], left: Sequence[Left]) -> LaunchError | None:
    """Return an error if a worker ended with exit code 0 during its session and was missed or never trained."""
    quitters = [_leaver(one) for one in left if one.unclosed]
    if quitters and any(one.silent or _complains(one) for one in lost):
        return LaunchError(f"{', '.join(quitters)}, and the others waited for it\n{_before(lost)}")
    if never := [_leaver(one) for one in left if one.unclosed and not one.begun]:
        return LaunchError(f"{', '.join(never)}, before it trained; the others have finished without it")
    return None


def through_without(lost: Sequence[Death]) -> tuple[str, int]:
    """Return the message and the exit code of a run that finished without the ``lost`` workers."""
    first = next((one for one in lost if one.rank == 0), None)
    # Scripts evaluate and save on rank 0, so without it results may be missing.
    code = 0 if first is None else _how(first)[1]
    why = "" if first is None else f"; the exit code is {code}, as scripts save on rank 0"
    return f"the run has finished without {_names(lost)}{why}", code


def stopped_by(number: int) -> LaunchError:
    """Return the error of a run that ended because of a signal to its launcher."""
    return LaunchError(f"stopped by {signal_name(number)}; all workers have ended", 128 + number)


def told_in(path: Path) -> dict[str, Any]:
    """Return a worker's own report about its end from this file; empty if missing or incomplete."""
    try:
        data = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return {}  # also if it was killed while it wrote
    message = data.get("message") if isinstance(data, dict) else None
    extra = message.get("extraInfo") if isinstance(message, dict) else None  # see uneven.runtime.world.report_failures
    return extra if isinstance(extra, dict) else {}


def _said(death: Death, then: str) -> LaunchError:
    how, code = _how(death)
    message = f"{_who(death)} {how}, {then}"
    if death.stops:
        message += f": {death.stops}"
    return LaunchError(message + _cause(death), code)


def _cause(death: Death) -> str:
    if trace := _trace(death):
        refused = _last_line(death).startswith(": uneven.errors.") and not _complains(death)  # its text explains itself
        above = "; its error is above" if refused else f"{_last_line(death)} (see above)"
        return above if death.shown else f"; its traceback:\n{trace}"
    if death.killed_by:
        return f": {death.killed_by}"
    if death.silent:
        return ""
    if death.exit_code == -KILL:
        return "; unless a user did that, the machine was out of memory (see `dmesg`)"
    return "; see its output above"


def _how(death: Death) -> tuple[str, int]:
    if death.silent:
        return f"{death.silent}, so it was killed", 128 + KILL
    if death.exit_code < 0 and _trace(death):
        # After the exception, its exit was slow and the launcher killed it, or gloo's threads aborted it.
        return "ended with an uncaught exception", 1
    if death.exit_code < 0:
        return f"was killed by {signal_name(-death.exit_code)}", 128 - death.exit_code
    return f"ended with exit code {death.exit_code}", death.exit_code


def _who(death: Death) -> str:
    where = f"{death.where}, " if death.where else ""
    return f"rank {death.rank} ({where}process {death.pid})"


def _leaver(one: Left) -> str:
    how = "during its session (os._exit?)" if one.unclosed else "(a return or sys.exit that only it reaches?)"
    return f"rank {one.rank} (process {one.pid}) had ended with exit code 0 {how}"


def _complains(death: Death) -> bool:
    return death.told.get("error") == PeerError.__name__


def _trace(death: Death) -> str:
    return str(death.told.get("py_callstack", "")).rstrip()


def _before(lost: Sequence[Death]) -> str:
    return f"before that, the others had continued without {_names(lost)}"


def _names(lost: Sequence[Death]) -> str:
    return ", ".join(f"rank {one.rank} (it {_how(one)[0]}{_last_line(one)})" for one in lost)


def _last_line(death: Death) -> str:
    lines = _trace(death).splitlines()
    return f": {lines[-1]}" if lines else ""


def _cause_first(death: Death, first_s: float, shutdown_within_s: float) -> tuple[bool, bool, bool, float, bool]:
    """Return the sort key that puts the cause of a failure before its consequences."""
    # Order: stopped workers first. An error about a peer is a consequence, and so is a worker ended by SIGTERM after
    # the first death without a traceback. A crash is a cause, unless the launcher's late SIGKILL looks like one.
    crashed = -death.exit_code in _CRASHES and death.ended_s - first_s < shutdown_within_s / 2
    asked = death.exit_code == -signal.SIGTERM
    ended_s = 0.0 if math.isinf(death.ended_s) and not asked else death.ended_s
    # Then the time decides: that of the exception if the worker wrote it, otherwise that of its end. An end before
    # the worker was found (infinite) was the first; of ends noticed together, a SIGTERM is the last.
    began_s = min(float(death.told.get("timestamp", death.ended_s)), ended_s)
    consequence = _complains(death) or (asked and ended_s > first_s and not _trace(death))
    return not death.silent, consequence, not crashed, began_s, asked
