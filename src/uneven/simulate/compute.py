"""When a piece of work ends on a node that is not always fully there. Pure."""

from __future__ import annotations

import math

import numpy as np

from uneven.cluster.spec import Node
from uneven.errors import ConfigError

_BLOCK = 256
"""Iterations whose jitter is drawn at once."""

_MOST_CHANGES = 100_000
"""Most changes of a node's speed within one piece of work; ours."""

_KEPT_CORE_S = 1e-3
"""Quota that Linux leaves with a core whose threads have gone to sleep, beyond the period that it was dealt out in
(min_cfs_rq_runtime in kernel/sched/fair.c); the next work there finds it."""


class Processor:
    """The processor time that one worker gets on its node.

    Work is counted in seconds at the node's full speed. At a time t it proceeds at the rate ``node.available(t)``
    times the factor of the slow-downs in force, so that its end is found by going from change to change.

    Args:
        node: whose share and load, over time, say what is available.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._steady = node.available(0.0) if node.share.constant and node.load.constant else None
        self._factors: list[float] = []
        self._factor = 1.0
        self._still_until_s = -math.inf

    def stop(self, until_s: float) -> None:
        """It stands still from now on until this time."""
        self._still_until_s = max(self._still_until_s, until_s)

    def slow(self, factor: float) -> None:
        """From now on ``factor`` of the speed is left, on top of other slow-downs."""
        self._factors.append(factor)
        self._factor = math.prod(self._factors)

    def recover(self, factor: float) -> None:
        """A slow-down is over."""
        self._factors.remove(factor)
        self._factor = math.prod(self._factors)

    def end_s(self, start_s: float, work_s: float) -> float:
        """When work that begins at ``start_s`` is done; infinite if it never is.

        Raises:
            ConfigError: too much changes until then.
        """
        start_s = max(start_s, self._still_until_s) if work_s > 0.0 else start_s
        if self._steady is not None:
            rate = self._steady * self._factor
            return start_s + work_s / rate if rate > 0.0 else math.inf if work_s > 0.0 else start_s
        time_s, left_s = start_s, work_s
        for _ in range(_MOST_CHANGES):
            rate = self._node.available(time_s) * self._factor
            change_s = self._node.next_change_s(time_s)
            if rate * (change_s - time_s) >= left_s:
                return time_s + (left_s / rate if left_s > 0.0 else 0.0)
            left_s -= rate * (change_s - time_s)
            time_s = change_s
        raise ConfigError(
            f"node {self._node.name!r}: its share or load changes more than {_MOST_CHANGES:,} times while it computes "
            f"{work_s:g} s: give it a larger step_s, or a smaller cost"
        )

    def after_rest(self, now_s: float, idle_s: float, work_s: float) -> float:
        """What is left of a piece of work that begins now, counted as if processor time were dealt out evenly.

        With a quota it is dealt out at the start of each period of P seconds, and a worker may use its part at once.
        Who has waited finds the part of the present period untouched, runs through it, waits for the next period, and
        in the last period is through before its part would have been dealt out evenly. Beginning anywhere in a period
        and needing any part of the last one, it is ahead by P (1 − q) on average at a quota of q cores for each
        thread, half of it at either end; and a millisecond of processor time was kept for it besides. It is not ahead
        by more than it has waited, and it cannot be faster than its threads. Where others compete, they take what it
        leaves.
        """
        node, rate, quota = self._node, self.rate(now_s), self._quota(now_s)
        if quota >= 1.0 or node.load.at(now_s) > 0.0:
            return work_s
        ahead_s = min(node.period_s * (1.0 - quota) + _KEPT_CORE_S / quota, max(idle_s, 0.0)) if quota > 0.0 else 0.0
        return max(work_s - ahead_s * rate, work_s * quota)

    def hand_over_s(self, now_s: float, messages: int) -> float:
        """What an exchange of so many messages in a row loses under a quota where it goes from thread to thread.

        That is about a period: the core on which the message's thread runs finds the quota with the other one's, and
        waits for the next. Where others compete, they use up the quota while the worker waits for a message, which
        then finds all of them stopped: with the part 1 − q of the time, for half of that part of a period; on the way
        in and on the way out.
        """
        quota, period_s = self._quota(now_s), self._node.period_s
        if quota >= 1.0:
            return 0.0
        stopped = 1.0 - min(1.0, self._node.cores * self._factor) if self._node.load.at(now_s) > 0.0 else 0.0
        return period_s * (1.0 + 2 * messages * stopped**2 / 2)

    def _quota(self, now_s: float) -> float:
        """Cores for each thread, where they are dealt out in periods; else 1."""
        node = self._node
        return node.cores * self.rate(now_s) / node.threads if node.period_s > 0.0 else 1.0

    def rate(self, now_s: float) -> float:
        """Part of the node's full speed at a time."""
        available = self._steady if self._steady is not None else self._node.available(now_s)
        return available * self._factor

    def work_s(self, start_s: float, end_s: float) -> float:
        """How much work is done between two times; the inverse of :meth:`end_s`."""
        start_s = min(max(start_s, self._still_until_s), end_s)
        if self._steady is not None:
            return (end_s - start_s) * self._steady * self._factor
        time_s, done_s = start_s, 0.0
        while time_s < end_s:
            change_s = min(self._node.next_change_s(time_s), end_s)
            done_s += self._node.available(time_s) * self._factor * (change_s - time_s)
            time_s = change_s
        return done_s


class Jitter:
    """Factors by which single compute times are off, log-normal with mean 1; given by seed, rank and iteration.

    Args:
        deviation: relative standard deviation; 0 makes every factor 1.
    """

    def __init__(self, deviation: float, seed: int, rank: int) -> None:
        self._sigma = math.sqrt(math.log1p(deviation**2))
        self._seed = seed, rank
        self._block = -1
        self._factors: list[float] = []

    def factor(self, iteration: int) -> float:
        """The factor of one iteration."""
        if self._sigma == 0.0:
            return 1.0
        block, place = divmod(iteration, _BLOCK)
        if block != self._block:
            draws = np.random.default_rng((*self._seed, block)).standard_normal(_BLOCK)
            self._factors = np.exp(self._sigma * draws - self._sigma**2 / 2).tolist()
            self._block = block
        return self._factors[place]
