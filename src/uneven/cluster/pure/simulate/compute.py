"""The end of a piece of work on a node that is not always fully available."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from uneven.cluster.pure.describe.spec import Node
from uneven.errors import ConfigError

_SLICE_S = 5e-3  # slice of a core (sysctl kernel.sched_cfs_bandwidth_slice_us)
_KEPT_S = 1e-3  # kept when its work is done (min_cfs_rq_runtime)
_TICK_S = 4e-3  # between ticks of a core's clock: CONFIG_HZ=250, as in Debian
_MOST_PERIODS = 100_000  # that one piece of work may halt for [default]
_PAID_S = 1e-9  # on top of a debt that is paid

Rate = Callable[[float], float]  # cores of one thread at a time: 0 … 1


@dataclass(slots=True)
class Quota:
    """The rest of a group's quota, and of its cores' slices, for one core at a time or for each of several threads.

    Processor time is granted in periods, as by a control group's quota under Linux::

        a period starts               the group's remaining quota becomes Q = P × cores, without the old rest
        a core starts work            it takes up to 5 ms of the rest; without any it halts
        a core has used up its slice  it runs on until the next tick of its clock, where that is noticed; the overdraft
                                      is a debt
        a core halts                  until a period's quota pays its debt
        a core's work is done         it keeps 1 ms of its slice and returns the rest

    So a tenth of a core in periods of 10 ms is never smooth: it runs for 1 to 4 ms, then halts for 10 to 30 ms. From
    ``kernel/sched/fair.c``, bandwidth control, as of Linux 6.18.
    """

    period_s: float  # P
    next_s: float  # start of the next period
    ticks_s: tuple[float, ...]  # a tick of each core, and so all of them
    left_s: float = 0.0  # of the current period, for any core
    own_s: list[float] = field(default_factory=list)  # slice of each core; negative is a debt
    rested_s: float = 0.0  # start of the current idle time

    @classmethod
    def begun(cls, period_s: float, cores: int, seed: tuple[int, ...]) -> "Quota":
        """Return a quota at time 0, at random phases of the period and of each core's ticks."""
        drawn = np.random.default_rng(seed).random(1 + cores)
        ticks_s = tuple(float(one) * _TICK_S for one in drawn[1:])
        return cls(period_s, -float(drawn[0]) * period_s, ticks_s, own_s=[0.0] * cores)

    def copy(self) -> "Quota":
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
                        f"{self.period_s:g} s: give the node a longer period_s, period_s = 0, or more cores"
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


_BLOCK = 256  # iterations whose jitter is drawn together
_CORES = 2  # with a quota: one for the worker's thread, and one for the thread that takes messages
_MOST_CHANGES = 100_000  # of a node's speed within one piece of work [default]


class Processor:
    """The processor time that one worker gets on its node.

    Work is counted in seconds at the node's full speed. At a time t it proceeds at the rate ``node.available(t)`` times
    the factors of the active slow-downs. ``seed`` sets the phase of the period, if the time is granted in periods.
    """

    def __init__(self, node: Node, *seed: int) -> None:
        self._node = node
        self._quota = Quota.begun(node.period_s, _CORES, seed) if node.period_s > 0.0 else None
        self._steady = node.available(0.0) if node.share.constant and node.load.constant else None
        self._factors: list[float] = []
        self._factor = 1.0
        self._still_until_s = -math.inf

    def stop(self, until_s: float) -> None:
        self._still_until_s = max(self._still_until_s, until_s)

    def slow(self, factor: float) -> None:
        """Leave ``factor`` of the speed from now on, on top of other slow-downs."""
        self._factors.append(factor)
        self._factor = math.prod(self._factors)

    def recover(self, factor: float) -> None:
        self._factors.remove(factor)
        self._factor = math.prod(self._factors)

    def end_s(self, start_s: float, work_s: float) -> float:
        """Return when work that starts at ``start_s`` is done; infinite if never.

        Raises:
            ConfigError: the node's speed changes too often until then.
        """
        start_s = max(start_s, self._still_until_s) if work_s > 0.0 else start_s
        if work_s <= 0.0 or self._factor <= 0.0:
            return start_s if work_s <= 0.0 else math.inf
        if self._quota is not None:
            # On a copy, because a question must not use up the quota; see spend().
            return self._run(self._quota.copy(), start_s, work_s)[0]
        if self._steady is not None:
            rate = self._steady * self._factor
            return start_s + work_s / rate if rate > 0.0 else math.inf
        # Step from change to change; between two the rate is constant.
        time_s, left_s = start_s, work_s
        for _ in range(_MOST_CHANGES):
            rate = self._node.available(time_s) * self._factor
            change_s = self._node.next_change_s(time_s)
            if rate * (change_s - time_s) >= left_s:
                return time_s + left_s / rate
            left_s -= rate * (change_s - time_s)
            time_s = change_s
        raise ConfigError(
            f"node {self._node.name!r}: its share or load changes more than {_MOST_CHANGES:,} times while it computes "
            f"{work_s:g} s: give it a larger step_s, or a smaller cost"
        )

    @property
    def dealt_out(self) -> bool:
        """True if its time is granted in periods and may be used up when it is needed."""
        return self._quota is not None and self._node.cores < 1.0

    def evenly_s(self, now_s: float, work_s: float) -> float:
        """Return how long work takes at the current rate, without periods; 0 while it is halted."""
        rate = self.rate(now_s)
        return work_s / rate if rate > 0.0 else 0.0

    def spend(self, start_s: float, work_s: float) -> None:
        """Charge work to the quota; :meth:`end_s` and :meth:`work_s` only compute."""
        if self._quota is not None and work_s > 0.0:
            self._run(self._quota, start_s, work_s)

    def answer_s(self, start_s: float, work_s: float, *, waited: bool = False) -> float:
        """Return when a message is answered, and charge the work to the quota.

        ``waited``: both threads were idle before, long enough for other processes of the group to use up the period.
        """
        if self._quota is None or not self.dealt_out:
            return self.end_s(start_s, work_s)
        if waited and self._node.load.at(start_s) > 0.0:
            self._quota.lose(start_s, self._dealt)
        # One thread receives, the other continues, each on its own core; one whose core has no quota left waits for the
        # next period.
        handed_s, _ = self._run(self._quota, start_s, work_s / 2, core=1)
        return self._run(self._quota, handed_s, work_s / 2)[0]

    def _run(
        self, quota: Quota, start_s: float, work_s: float, until_s: float = math.inf, core: int = 0
    ) -> tuple[float, float]:
        # Other processes of the group have used up the period while this one rested.
        if self._node.load.at(start_s) > 0.0 and start_s > quota.rested_s:
            quota.lose(start_s, self._dealt)
        whole = self._node.cores / self._node.threads
        try:
            end_s, done_s = quota.run(core, start_s, work_s * whole, self._dealt, until_s)
        except ConfigError as error:
            raise ConfigError(f"node {self._node.name!r}: {error}") from error
        return end_s, done_s / whole

    def _dealt(self, time_s: float) -> float:
        """Return the cores of each thread that are granted in periods."""
        return min(1.0, self._node.cores * self.rate(time_s) / self._node.threads)

    def rate(self, now_s: float) -> float:
        available = self._steady if self._steady is not None else self._node.available(now_s)
        return available * self._factor

    def work_s(self, start_s: float, end_s: float) -> float:
        """Return the work done between two times; the inverse of :meth:`end_s`."""
        start_s = min(max(start_s, self._still_until_s), end_s)
        if self._quota is not None:
            return self._run(self._quota.copy(), start_s, math.inf, end_s)[1]
        if self._steady is not None:
            return (end_s - start_s) * self._steady * self._factor
        time_s, done_s = start_s, 0.0
        while time_s < end_s:
            change_s = min(self._node.next_change_s(time_s), end_s)
            done_s += self._node.available(time_s) * self._factor * (change_s - time_s)
            time_s = change_s
        return done_s


class Jitter:
    """Log-normal factors with mean 1 of single compute times, determined by seed, rank and iteration."""

    def __init__(self, deviation: float, seed: int, rank: int) -> None:
        self._sigma = math.sqrt(math.log1p(deviation**2))
        self._seed = seed, rank
        self._block = -1
        self._factors: list[float] = []

    def factor(self, iteration: int) -> float:
        if self._sigma == 0.0:
            return 1.0
        block, place = divmod(iteration, _BLOCK)
        if block != self._block:
            # A generator per block: cheaper than one per iteration, and an iteration's factor does not depend on the
            # calls before.
            draws = np.random.default_rng((*self._seed, block)).standard_normal(_BLOCK)
            self._factors = np.exp(self._sigma * draws - self._sigma**2 / 2).tolist()
            self._block = block
        return self._factors[place]
