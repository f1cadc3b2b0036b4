"""How long one of an ensemble's processes may be silent while it is busy."""

from __future__ import annotations

from uneven.errors import ConfigError
from uneven.jobs.pulse import Silence

TIMEOUT_S = 300.0
"""How long a sample, a step, a factory's call or a checkpoint may take; the same as ``uneven.Session``'s."""


def hangs(timeout_s: float, at: str) -> str:
    """What is said of a process that hangs."""
    return f"it hangs: {Silence(timeout_s, at)}; if that takes longer, raise Options(timeout_s=…) or --timeout"


def checked(timeout_s: float) -> float:
    """A time-out, in seconds.

    Raises:
        ConfigError: too short to tell a process that hangs from one that is busy.
    """
    if not timeout_s >= 1.0:
        raise ConfigError(f"timeout_s={timeout_s:g}: at least 1 s; float('inf') waits for ever")
    return timeout_s
