"""Limit the silence of a busy process of an ensemble."""

from uneven.errors import ConfigError
from uneven.runtime.jobs.heartbeat import Silence

TIMEOUT_S = 300.0  # for a sample, a step, a factory's call or a checkpoint; equal to ``uneven.Session``'s


def hangs(timeout_s: float, at: str) -> str:
    """Return the message about a process that hangs."""
    return f"it hangs: {Silence(timeout_s, at)}; if that takes longer, raise Options(timeout_s=…) or --step-timeout"


def checked(timeout_s: float) -> float:
    """Return the time-out, in seconds. Raises `ConfigError` if a busy process would seem to hang."""
    if not timeout_s >= 1.0:
        raise ConfigError(f"timeout_s={timeout_s:g}: give at least 1 s; float('inf') means no limit")
    return timeout_s
