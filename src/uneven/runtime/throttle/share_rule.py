"""The rule for when a throttled process stops and continues.

The rule keeps an account in seconds of CPU time::

    credit += share · elapsed − used

A running process stops when its credit is used up, and continues when it has earned one slice. It owes its overuse, so
late checks cost accuracy within a period but not over many.

A process that waits for others must not save up, or a slow machine would start every iteration with a sprint. Its
credit is at most one quantum, and after a period without work at most half a slice, the average of a busy process. So a
job of W seconds of CPU time takes W ÷ share on average, with or without a wait before it. A process that is ready but
gets no core does save up, to a few quanta, so that it still gets its share.
"""

import math
from dataclasses import dataclass

from uneven.errors import ConfigError

_IDLE_BELOW = 0.02  # cores; background threads wake up now and then in a waiting process
_LONG_IDLE_S = 1.0  # longer than any wait within an iteration
_BACKLOG = 5  # quanta that a process without a core may save up


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareRule:
    """The limit of a process tree. Raises ConfigError for a value that is not a positive finite number."""

    share: float  # cores; 0.4 is 40 % of one core, 1.5 is a core and a half
    # length of one run-and-stop cycle of a busy process. A shorter one is smoother and costs more.
    period_s: float = 0.02
    # largest debt in CPU time; more is forgiven, so that no process stops for minutes after the throttle itself
    # could not run (a laptop that slept)
    max_debt_s: float = 1.0

    def __post_init__(self) -> None:
        for name in ("share", "period_s", "max_debt_s"):
            value = getattr(self, name)
            if not (isinstance(value, (int, float)) and math.isfinite(value) and value > 0):
                raise ConfigError(f"throttle: {name} = {value!r} must be a positive number, for instance 0.4")

    @property
    def quantum_s(self) -> float:
        """The CPU time of one period."""
        return self.share * self.period_s

    @property
    def slice_s(self) -> float:
        """The credit with which a stopped process continues."""
        # A process on one core uses it up in slice ÷ (1 − share) and earns it in slice ÷ share; the sum is one period.
        # A share close to or above one core keeps a twentieth of a quantum.
        return self.quantum_s * max(1.0 - self.share, 0.05)


@dataclass(frozen=True, slots=True)
class Account:
    """The state of a process tree."""

    credit_s: float = 0.0  # CPU time that it may still use; negative values are debt
    stopped: bool = False  # True if it must be stopped now
    check_in_s: float = 0.0  # seconds before which nothing can change
    burn: float = 1.0  # cores in use when it last ran
    idle_s: float = 0.0  # time in which it could run, but did not work and did not wait for a core


def advance(rule: ShareRule, account: Account, elapsed_s: float, used_s: float, waited_s: float = 0.0) -> Account:
    """Return the account after ``elapsed_s``, in which the tree used ``used_s`` of CPU time, and was ready to run
    without a core for ``waited_s`` (0 if unknown)."""
    earned = account.credit_s + rule.share * elapsed_s - used_s
    saved = min(account.credit_s + rule.share * waited_s, _BACKLOG * rule.quantum_s)
    credit = max(min(earned, max(rule.quantum_s, rule.slice_s, saved)), -rule.max_debt_s)
    if account.stopped:
        stopped = credit < rule.slice_s * (1 - 1e-9)
        pause = (rule.slice_s - credit) / rule.share if stopped else _earliest_end(rule, credit, account.burn)
        return Account(credit, stopped, pause, account.burn)
    idle = account.idle_s + elapsed_s if used_s + waited_s < _IDLE_BELOW * elapsed_s else 0.0
    if idle >= rule.period_s:
        credit = min(credit, rule.slice_s / 2)
    burn = used_s / elapsed_s if elapsed_s > 0 else account.burn
    if credit <= 0:
        return Account(credit, True, (rule.slice_s - credit) / rule.share, burn)
    # Checks cost time as well. A waiting tree is checked often, because a job between two checks runs at full speed;
    # after a long idle time less often.
    least = rule.period_s / (10 if idle < _LONG_IDLE_S else 2)
    return Account(credit, False, max(_earliest_end(rule, credit, burn), least), burn, idle)


def _earliest_end(rule: ShareRule, credit_s: float, burn: float) -> float:
    # A tree that used more than one core is assumed to continue so; another one may use a core at any moment.
    drain = max(burn, 1.0) - rule.share
    return min(credit_s / drain, rule.period_s) if drain > 0 else rule.period_s
