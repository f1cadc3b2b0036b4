"""When a piece of work ends on a node that is not always fully there. Pure."""

from __future__ import annotations

import math

import numpy as np

from uneven.cluster.spec import Node
from uneven.errors import ConfigError
from uneven.simulate.quota import Quota

_BLOCK = 256
"""Iterations whose jitter is drawn at once."""

_CORES = 2
"""What a quota is with: one for the worker's thread, and one for the thread that takes messages."""

_MOST_CHANGES = 100_000
"""Most changes of a node's speed within one piece of work; ours."""


class Processor:
    """The processor time that one worker gets on its node.

    Work is counted in seconds at the node's full speed. At a time t it proceeds at the rate ``node.available(t)``
    times the factor of the slow-downs in force, so that its end is found by going from change to change.

    Args:
        node: whose share and load, over time, say what is available.
        seed: says where in a period it begins, if the node's processor time is dealt out in periods.
    """

    def __init__(self, node: Node, *seed: int) -> None:
        self._node = node
        self._quota = Quota.begun(node.period_s, _CORES, seed) if node.period_s > 0.0 else None
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
        if work_s <= 0.0 or self._factor <= 0.0:
            return start_s if work_s <= 0.0 else math.inf
        if self._quota is not None:
            return self._run(self._quota.copy(), start_s, work_s)[0]
        if self._steady is not None:
            rate = self._steady * self._factor
            return start_s + work_s / rate if rate > 0.0 else math.inf
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
        """Whether its time is dealt out in periods, and may all be gone when it is wanted."""
        return self._quota is not None and self._node.cores < 1.0

    def evenly_s(self, now_s: float, work_s: float) -> float:
        """How long work takes as fast as it is now, were its time dealt out evenly; 0 where it stands still."""
        rate = self.rate(now_s)
        return work_s / rate if rate > 0.0 else 0.0

    def spend(self, start_s: float, work_s: float) -> None:
        """Note that it has worked, of which a quota depends. :meth:`end_s` and :meth:`work_s` only reckon."""
        if self._quota is not None and work_s > 0.0:
            self._run(self._quota, start_s, work_s)

    def answer_s(self, start_s: float, work_s: float, *, waited: bool = False) -> float:
        """When it has answered a message, and notes that it has.

        A thread takes what comes, and hands it to the one that waits. With a quota the two run on a core each, and
        where the quota is with the other one's, a core waits for the next period.

        Args:
            waited: both threads had nothing to do before, however short: enough for others of the group, if it has any
                that compute, to take what the period has left.
        """
        if self._quota is None or not self.dealt_out:
            return self.end_s(start_s, work_s)
        if waited and self._node.load.at(start_s) > 0.0:
            self._quota.lose(start_s, self._dealt)
        handed_s, _ = self._run(self._quota, start_s, work_s / 2, core=1)
        return self._run(self._quota, handed_s, work_s / 2)[0]

    def _run(
        self, quota: Quota, start_s: float, work_s: float, until_s: float = math.inf, core: int = 0
    ) -> tuple[float, float]:
        """With a quota, or a copy of it: when it ends, and how much is done by then."""
        if self._node.load.at(start_s) > 0.0 and start_s > quota.rested_s:
            quota.lose(start_s, self._dealt)
        whole = self._node.cores / self._node.threads
        try:
            end_s, done_s = quota.run(core, start_s, work_s * whole, self._dealt, until_s)
        except ConfigError as error:
            raise ConfigError(f"node {self._node.name!r}: {error}") from error
        return end_s, done_s / whole

    def _dealt(self, time_s: float) -> float:
        """Cores for each thread, which are dealt out in periods."""
        return min(1.0, self._node.cores * self.rate(time_s) / self._node.threads)

    def rate(self, now_s: float) -> float:
        """Part of the node's full speed at a time."""
        available = self._steady if self._steady is not None else self._node.available(now_s)
        return available * self._factor

    def work_s(self, start_s: float, end_s: float) -> float:
        """How much work is done between two times; the inverse of :meth:`end_s`."""
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
