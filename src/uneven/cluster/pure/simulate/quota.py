"""Processor time that is granted in periods: a control group's quota under Linux.

::

    a period starts               the group's remaining quota becomes Q = P × cores, without the old rest
    a core starts work            it takes up to 5 ms of the rest; without any it halts
    a core has used up its slice  it runs on until the next tick of its clock, where that is noticed; the overdraft
                                  is a debt
    a core halts                  until a period's quota pays its debt
    a core's work is done         it keeps 1 ms of its slice and returns the rest

So a tenth of a core in periods of 10 ms is never a tenth of a core: it runs for 1 to 4 ms and then halts for 10 to 30
ms. From ``kernel/sched/fair.c``, bandwidth control, as of Linux 6.18.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from uneven.errors import ConfigError

_SLICE_S = 5e-3  # slice of a core (sysctl kernel.sched_cfs_bandwidth_slice_us)
_KEPT_S = 1e-3  # kept when its work is done (min_cfs_rq_runtime)
_TICK_S = 4e-3  # between ticks of a core's clock: CONFIG_HZ=250, as in Debian
_MOST_PERIODS = 100_000  # that one piece of work may halt for [default]
_PAID_S = 1e-9  # on top of a debt that is paid

Rate = Callable[[float], float]  # cores of one thread at a time: 0 … 1


@dataclass(slots=True)
class Quota:
    """The rest of a group's quota, and of its cores' slices, for one core at a time or for each of several threads."""

    period_s: float  # P
    next_s: float  # start of the next period
    ticks_s: tuple[float, ...]  # a tick of each core, and so all of them
    left_s: float = 0.0  # of the current period, for any core
    own_s: list[float] = field(default_factory=list)  # slice of each core; negative is a debt
    rested_s: float = 0.0  # start of the current idle time

    @classmethod
    def begun(cls, period_s: float, cores: int, seed: tuple[int, ...]) -> Quota:
        """Return a quota at time 0, at random phases of the period and of each core's ticks."""
        drawn = np.random.default_rng(seed).random(1 + cores)
        ticks_s = tuple(float(one) * _TICK_S for one in drawn[1:])
        return cls(period_s, -float(drawn[0]) * period_s, ticks_s, own_s=[0.0] * cores)

    def copy(self) -> Quota:
        return replace(self, own_s=list(self.own_s))

    def run(
        self, core: int, start_s: float, work_s: float, rate: Rate, until_s: float = math.inf
    ) -> tuple[float, float]:
        """Compute for ``work_s``, at most until ``until_s``; return the end and the work done.

        Raises:
            ConfigError: it halts too often until then.
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
            # An empty slice is noticed at a tick only, so the core overdraws it until then.
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
        """Use up all of the current quota, as other processes of the group do."""
        self._go_on(now_s, rate)
        self.left_s = 0.0
        self.own_s = [min(0.0, one) for one in self.own_s]

    def _go_on(self, now_s: float, rate: Rate) -> None:
        if self.next_s > now_s:
            return
        began_s = self.next_s + (now_s - self.next_s) // self.period_s * self.period_s  # start of the current period
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
