"""Processor time that is dealt out in periods: a control group's quota, as Linux deals it out. Pure.

::

    a period begins               what is left for its cores becomes Q = P × cores, whatever it was
    a core begins work            it takes what is left, up to 5 ms; without any it stands still
    a core has used up its own    it goes on to the next tick of its clock, where that is noticed: what it has overdrawn
                                  is a debt
    a core stands still           until the part of a period pays its debt
    a core's work is done         it keeps 1 ms of its own, and gives back the rest

So a tenth of a core, in periods of 10 ms, is no tenth of a core at any time: it comes as 1 to 4 ms at a stretch, and
nothing for 10 to 30 ms then. From ``kernel/sched/fair.c``, control of bandwidth, as of Linux 6.18.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from uneven.errors import ConfigError

_SLICE_S = 5e-3
"""What a core takes at once (sysctl kernel.sched_cfs_bandwidth_slice_us)."""

_KEPT_S = 1e-3
"""What it keeps when its work is done (min_cfs_rq_runtime)."""

_TICK_S = 4e-3
"""From one tick of a core's clock to the next: CONFIG_HZ=250, as Debian has it."""

_MOST_PERIODS = 100_000
"""Most periods that one piece of work may stand still for; ours."""

_PAID_S = 1e-9
"""What a core whose debt has been paid is given on top."""

Rate = Callable[[float], float]
"""Cores at a time, of one thread's: 0 … 1."""


@dataclass(slots=True)
class Quota:
    """What a group has left of its quota, and its cores of what they took.

    It computes on one core at a time; of several threads that compute side by side it is what each of them has.

    Attributes:
        period_s: P.
        next_s: when the next period begins.
        ticks_s: a tick of each core, and so all of them.
        left_s: of the present period, for any core.
        own_s: of each core; negative is a debt.
        rested_s: since when nothing computes.
    """

    period_s: float
    next_s: float
    ticks_s: tuple[float, ...]
    left_s: float = 0.0
    own_s: list[float] = field(default_factory=list)
    rested_s: float = 0.0

    @classmethod
    def begun(cls, period_s: float, cores: int, seed: tuple[int, ...]) -> Quota:
        """At time 0, somewhere in a period; where, and when each core ticks, is drawn."""
        drawn = np.random.default_rng(seed).random(1 + cores)
        ticks_s = tuple(float(one) * _TICK_S for one in drawn[1:])
        return cls(period_s, -float(drawn[0]) * period_s, ticks_s, own_s=[0.0] * cores)

    def copy(self) -> Quota:
        """The same, for a question what would be."""
        return replace(self, own_s=list(self.own_s))

    def run(
        self, core: int, start_s: float, work_s: float, rate: Rate, until_s: float = math.inf
    ) -> tuple[float, float]:
        """Compute.

        Args:
            work_s: s of a thread that nothing slows down.
            until_s: no longer than to this time, even if something is left.

        Returns:
            When it ended, and how much was done.

        Raises:
            ConfigError: it stands still too often until then.
        """
        now_s, done_s, waited = start_s, 0.0, 0
        self._go_on(now_s, rate)
        while done_s < work_s and now_s < until_s:
            if not self._takes(core):
                waited += 1
                if waited > _MOST_PERIODS:
                    raise ConfigError(
                        f"a piece of work of {work_s:g} s waits for more than {_MOST_PERIODS:,} periods of "
                        f"{self.period_s:g} s: give the node a longer period_s, 0 to have its time dealt out evenly, "
                        f"or more cores"
                    )
                now_s = self.next_s
                self._go_on(now_s, rate)
                self._pay(core)
                continue
            own_s = self.own_s[core]
            left_s = min(work_s - done_s, until_s - now_s)
            here_s = min(own_s + self._to_tick_s(core, now_s + own_s), left_s)
            now_s += here_s
            done_s = work_s if here_s == work_s - done_s else done_s + here_s
            self.own_s[core] -= here_s
            self._go_on(now_s, rate)
        self._give_back(core)
        self.rested_s = min(now_s, until_s)
        return self.rested_s, done_s

    def lose(self, now_s: float, rate: Rate) -> None:
        """Others of the group have used up everything meanwhile."""
        self._go_on(now_s, rate)
        self.left_s = 0.0
        self.own_s = [min(0.0, one) for one in self.own_s]

    def _go_on(self, now_s: float, rate: Rate) -> None:
        if self.next_s > now_s:
            return
        began_s = self.next_s + (now_s - self.next_s) // self.period_s * self.period_s  # the newest that has begun
        self.left_s = self.period_s * rate(began_s)
        self.next_s = began_s + self.period_s

    def _takes(self, core: int) -> bool:
        if self.own_s[core] <= 0.0:
            self._move(core, _SLICE_S - self.own_s[core])
        return self.own_s[core] > 0.0

    def _pay(self, core: int) -> None:
        self._move(core, _PAID_S - self.own_s[core])

    def _give_back(self, core: int) -> None:
        if self.own_s[core] > _KEPT_S:
            self._move(core, _KEPT_S - self.own_s[core])

    def _move(self, core: int, wanted_s: float) -> None:
        moved_s = min(wanted_s, self.left_s)
        self.left_s -= moved_s
        self.own_s[core] += moved_s

    def _to_tick_s(self, core: int, now_s: float) -> float:
        return _TICK_S - (now_s - self.ticks_s[core]) % _TICK_S
