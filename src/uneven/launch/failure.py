"""Which worker to blame when several have ended, and how to say it. Imports no torch."""

from __future__ import annotations

import json
import math
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from uneven.errors import LaunchError, PeerError

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
    """

    rank: int
    pid: int
    exit_code: int
    where: str = ""
    ended_s: float = float("inf")
    told: Mapping[str, Any] = field(default_factory=dict)
    killed_by: str = ""


def blame(deaths: Sequence[Death], *, first_s: float, shutdown_within_s: float) -> LaunchError:
    """One line, about the worker that died first.

    Args:
        first_s: when the first end of any worker was noticed, Unix time.
        shutdown_within_s: how long workers may take to end when the launcher asks them to.
    """
    return _said(min(deaths, key=lambda death: _cause_first(death, first_s, shutdown_within_s)))


def told_in(text: str) -> dict[str, Any]:
    """What a worker wrote about its end; empty if that cannot be understood."""
    try:
        data = json.loads(text)
    except ValueError:
        return {}  # it was killed while it wrote
    message = data.get("message") if isinstance(data, dict) else None
    return told_by(message)


def told_by(message: Any) -> dict[str, Any]:
    """The part that :func:`uneven.world.report_failures` adds to torch's message."""
    extra = message.get("extraInfo") if isinstance(message, dict) else None
    return extra if isinstance(extra, dict) else {}


def _said(death: Death) -> LaunchError:
    trace = str(death.told.get("py_callstack", "")).rstrip()
    if trace and death.exit_code < 0:
        # Its end after the exception took long, so that the launcher ended it, or gloo's threads aborted it.
        how, code = "ended with an uncaught exception", 1
    elif death.exit_code < 0:
        how, code = f"was killed by {_name(-death.exit_code)}", 128 - death.exit_code
    else:
        how, code = f"ended with exit code {death.exit_code}", death.exit_code
    where = f"{death.where}, " if death.where else ""
    message = f"rank {death.rank} ({where}process {death.pid}) {how}, so the run has been ended"
    if trace:
        message += f"; its traceback:\n{trace}"
    elif death.killed_by:
        message += f": {death.killed_by}"
    elif death.exit_code == -signal.SIGKILL:
        message += "; if nobody did that by hand, the machine was out of memory (see `dmesg`)"
    else:
        message += "; what it had to say is above"
    return LaunchError(message, code)


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _cause_first(death: Death, first_s: float, shutdown_within_s: float) -> tuple[bool, bool, float, bool]:
    """Sorts the deaths of one run so that the cause of the others comes first.

    Whoever complains about a peer is a consequence, and whoever crashed or was killed is not, unless the
    launcher itself killed it, much later. Then the time counts: that of the exception if the worker wrote it
    down, else that of its end. Who ended before it had been found was the first; among those whose ends were noticed
    together, who was asked to end comes last.
    """
    crashed = -death.exit_code in _CRASHES and death.ended_s - first_s < shutdown_within_s / 2
    asked = death.exit_code == -signal.SIGTERM
    ended_s = 0.0 if math.isinf(death.ended_s) and not asked else death.ended_s
    began_s = min(float(death.told.get("timestamp", death.ended_s)), ended_s)
    return death.told.get("error") == PeerError.__name__, not crashed, began_s, asked
