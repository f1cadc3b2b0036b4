"""When a throttled process stops and when it goes on. Pure.

The rule keeps an account in seconds of CPU time::

    credit += share · elapsed − used

A running process stops when its credit is gone and goes on when it has earned one slice. What it used beyond
its credit is owed, so that checking late costs accuracy within a period but none over many periods.

A process that waits for somebody must not save up, or a slow machine would start every iteration with a
sprint. Its credit grows to one quantum at most, and after a period without work it is set to at most half a
slice, which is what a busy process has on average. So a job of W seconds of CPU time takes W ÷ share on
average, whether or not the process waited before it. A process that is ready but gets no core (the machine is
busy with others) does save up, to a few quanta, so that it comes to its share all the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from uneven.errors import ConfigError

_IDLE_BELOW = 0.02  # cores; background threads wake up now and then in a process that only waits
_LONG_IDLE_S = 1.0  # longer than anybody waits within an iteration
_BACKLOG = 5  # quanta that a process without a core may save up


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareRule:
    """What a process tree may use.

    Attributes:
        share: cores; 0.4 is 40 % of one core, 1.5 is a core and a half.
        period_s: length of one run-and-stop cycle of a busy process. Shorter is smoother and costs more.
        max_debt_s: CPU time beyond this is forgiven, so that nobody is stopped for minutes because the
            throttle itself could not run (a laptop that slept).

    Raises:
        ConfigError: a value that is not a positive finite number.
    """

    share: float
    period_s: float = 0.02
    max_debt_s: float = 1.0

    def __post_init__(self) -> None:
        for name in ("share", "period_s", "max_debt_s"):
            value = getattr(self, name)
            if not (isinstance(value, (int, float)) and math.isfinite(value) and value > 0):
                raise ConfigError(f"throttle: {name} = {value!r} must be a positive number, for instance 0.4")

    @property
    def quantum_s(self) -> float:
        """CPU time that one period is worth."""
        return self.share * self.period_s

    @property
    def slice_s(self) -> float:
        """Credit with which a stopped process goes on.

        A process on one core burns it in slice ÷ (1 − share) and earns it back in slice ÷ share; the two add
        up to one period. A share close to or above one core keeps a twentieth of a quantum.
        """
        return self.quantum_s * max(1.0 - self.share, 0.05)


@dataclass(frozen=True, slots=True)
class Account:
    """Where a process tree stands.

    Attributes:
        credit_s: CPU time that it may still use; below zero it is owed.
        stopped: whether it has to be stopped now.
        check_in_s: nothing can change before so many seconds have passed.
        burn: cores in use when it last ran.
        idle_s: how long it has neither worked nor waited for a core although it was allowed to.
    """

    credit_s: float = 0.0
    stopped: bool = False
    check_in_s: float = 0.0
    burn: float = 1.0
    idle_s: float = 0.0


def advance(rule: ShareRule, account: Account, elapsed_s: float, used_s: float, waited_s: float = 0.0) -> Account:
    """The account after some time has passed.

    Args:
        rule: what the tree may use.
        account: where it stood.
        elapsed_s: time since then.
        used_s: CPU time that the tree used in it.
        waited_s: time in which it was ready to run and had no core; 0 where that is not known.
    """
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
    # Looking costs time as well. Who waits is watched closely, since a job that fits between two looks would
    # be done at full speed and be paid for only afterwards; but not if nothing happens for long.
    least = rule.period_s / (10 if idle < _LONG_IDLE_S else 2)
    return Account(credit, False, max(_earliest_end(rule, credit, burn), least), burn, idle)


def _earliest_end(rule: ShareRule, credit_s: float, burn: float) -> float:
    """Earliest time at which a running tree's credit can be gone.

    A tree that used more than one core is taken to go on so; one that used less may use a core at any moment.
    """
    drain = max(burn, 1.0) - rule.share
    return min(credit_s / drain, rule.period_s) if drain > 0 else rule.period_s
