"""LBB: a refit when times are far apart, one sample at a time when they are close.

After "LBB: Load-Balanced Batching for Efficient Distributed Learning on Heterogeneous GPU Cluster" (The Journal of
Supercomputing, 2024). SE = (max t − min t) / mean t decides after each iteration. ``docs/ideas/rivals.md`` has our
reading of its open points. The thirty iterations after a refit are the program's, which counts only quiet ones. t is
compute time, as in the program, so the rule does not see a slow link.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from uneven.errors import ConfigError
from uneven.policy.balance.balancer import Balancer, standing
from uneven.policy.balance.profiled import Profile
from uneven.policy.core.actions import Split
from uneven.policy.core.plain import read
from uneven.policy.core.views import BalanceView, Limits
from uneven_bench.balancers.earliest import earliest
from uneven_bench.balancers.rivals.cubic import LEAST_SIZES, Cubic


def straggling(times_s: Sequence[float]) -> float:
    return (max(times_s) - min(times_s)) * len(times_s) / sum(times_s)


def one_sample(shares: Sequence[int], times_s: Sequence[float], limits: Limits) -> tuple[int, ...]:
    """Move one sample from the slowest to the fastest worker, unless a limit forbids it."""
    slow, fast = times_s.index(max(times_s)), times_s.index(min(times_s))
    moved = list(shares)
    if slow != fast and shares[slow] > limits.lower[slow] and shares[fast] < limits.upper[fast]:
        moved[slow] -= 1
        moved[fast] += 1
    return tuple(moved)


def refit(
    shares: Sequence[int], times_s: Sequence[float], a0_s: Sequence[float], total: int, limits: Limits
) -> tuple[int, ...]:
    """Return the best split for t(b) = (CT − a0) / CB · b + a0, the line through a0 and the newest measurement. Raises
    ConfigError: limits that cannot be met. ``shares``: CB, the batch of each worker; ``times_s``: CT, its seconds;
    ``a0_s``: of each worker's profile; if the time is not above it, half the time counts; ``total``: X; ``limits``:
    least and greatest share of each worker."""
    fixed_s = [min(a0, 0.5 * t) for a0, t in zip(a0_s, times_s, strict=True)]
    lines = [Cubic(a0, (t - a0) / b) for t, a0, b in zip(times_s, fixed_s, shares, strict=True)]
    return earliest([line.seconds for line in lines], total, limits)


class _LbbState(TypedDict):
    started: bool
    newest: int
    refitted: int


class Lbb(Balancer):
    """LBB (2024), for comparison: refits when times are far apart, and moves one sample when they are close.

    It decides after every iteration measured under the present split. Raises ConfigError: thresholds or window out of
    range, or an invalid profile.

    ``profile``: each worker's cubic, by rank; by default the session's profile. Without any, equal shares at first and
    a0 = 0; ``calm``: SE below which nothing moves; ``far``: SE from which the costs are fitted again; ``window``:
    iterations after a refit with single samples only.
    """

    predictor = "last"

    def __init__(
        self, *, profile: Sequence[Cubic] | None = None, calm: float = 0.05, far: float = 0.3, window: int = 30
    ) -> None:
        if not 0.0 <= calm <= far or window < 0:
            raise ConfigError(
                f"lbb: calm = {calm!r} must lie between 0 and far = {far!r}, and window = {window!r} not be negative"
            )
        if profile is not None and not all(isinstance(one, Cubic) for one in profile):
            raise ConfigError(f"lbb: profile = {profile!r}: give a Cubic of each rank, in Python")
        self._profile = None if profile is None else tuple(profile)
        self._calm = calm
        self._far = far
        self._window = window
        self._started = False
        self._newest = -1
        self._refitted = -window - 1  # iteration of the last refit

    def split(self, view: BalanceView) -> Split:
        """Hold, move one sample, or fit again. Raises ConfigError: the profile is of another number of workers."""
        if not self._started:
            self._started = True
            return self._first(view)
        times_s = self._measured(view)
        present = standing(view)
        if times_s is None:
            return Split(present, "lbb: no measurement under the present split yet")
        far_apart = straggling(times_s)
        if far_apart < self._calm:
            return Split(present, f"lbb: the times are within {far_apart:.1%}")
        if far_apart < self._far or self._newest - self._refitted <= self._window:
            return Split(one_sample(present, times_s, view.limits), f"lbb: fine tuning, times within {far_apart:.1%}")
        self._refitted = self._newest
        a0_s = [self._cost(rank).a0 for rank in view.members]
        shares = refit(present, times_s, a0_s, view.global_batch, view.limits)
        return Split(shares, f"lbb: rapid tuning, times {far_apart:.1%} apart")

    def profiled(self, profiles: Mapping[int, Profile]) -> None:
        """Fit cubics for the next split, unless others were given or the profile has too few sizes."""
        whole = tuple(sorted(profiles)) == tuple(range(len(profiles)))
        if self._profile is None and whole and all(len(one.sizes) >= LEAST_SIZES for one in profiles.values()):
            self._profile = tuple(Cubic.fit(one.sizes, one.seconds) for _, one in sorted(profiles.items()))
            self._started = False

    def _first(self, view: BalanceView) -> Split:
        if self._profile is None:
            return Split(standing(view), "lbb: no profile, equal shares at first")
        if view.members[-1] >= len(self._profile):
            raise ConfigError(f"lbb: a profile of {len(self._profile)} workers has none of rank {view.members[-1]}")
        seconds = [self._cost(rank).seconds for rank in view.members]
        return Split(earliest(seconds, view.global_batch, view.limits), "lbb: from the profile")

    def _cost(self, rank: int) -> Cubic:
        known = self._profile is not None and rank < len(self._profile)  # a worker that joined later has no profile
        return self._profile[rank] if known and self._profile is not None else Cubic(0.0, 0.0)

    def _measured(self, view: BalanceView) -> list[float] | None:
        """Return each worker's seconds of an iteration, or None unless all are new and of the present shares."""
        times_s = []
        for seen, share in zip(view.observed, view.shares, strict=True):
            if seen is None or seen.local_s <= 0.0 or share == 0 or seen.samples != share * seen.iterations:
                return None
            times_s.append(seen.local_s / seen.iterations)
        oldest = min(seen.iteration for seen in view.observed if seen is not None)
        if oldest <= self._newest:
            return None
        self._newest = oldest
        return times_s

    def state_dict(self) -> dict[str, Any]:
        """Return the place in the window; a resumed run measures its profile again."""
        return {"started": self._started, "newest": self._newest, "refitted": self._refitted}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        saved = read(_LbbState, state)
        self._started, self._newest, self._refitted = saved["started"], saved["newest"], saved["refitted"]
