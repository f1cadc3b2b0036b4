"""The balancer interface."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from operator import le, mul, truediv
from typing import Any

from uneven.errors import ConfigError
from uneven.policy.balance.profiled import Profile
from uneven.policy.core.actions import Split
from uneven.policy.core.apportion import proportional
from uneven.policy.core.forward import forwarded
from uneven.policy.core.plain import inside, read
from uneven.policy.core.registry import Registry
from uneven.policy.core.views import BalanceView
from uneven.policy.predict import predictors


class Balancer(ABC):
    """A rule that divides the next iteration's samples among the workers.

    The slow loop calls :meth:`split` on every rank with the same view, so all ranks must return the same answer: no
    clock, no randomness. ``sum(split.shares) == view.global_batch`` and the limits always hold. Constructors raise
    ``ConfigError`` for an option out of range.

    Attributes:
        predictor: name of the predictor that fills ``view.predicted_per_s`` ("light", "ema", "last", …).
        adapts: False if the split never changes once it is made; then no reports are gathered.
        partial_updates: True if it can also be called when only workers whose speed has suddenly changed have reported,
            and the last reports of the others are reused; False if it needs a new report of every worker.
        made_for: the number of workers it needs; None for any.
    """

    predictor: str = "light"
    adapts: bool = True
    partial_updates: bool = False
    made_for: int | None = None

    @abstractmethod
    def split(self, view: BalanceView) -> Split:
        """Return the split of the next iteration.

        Before every worker has reported (``not view.ready``), :func:`standing` is a reasonable answer.
        """

    def profiled(self, profiles: Mapping[int, Profile]) -> None:  # noqa: B027 - most do without
        """Use ``profiles``, each rank's measurements from before the first iteration; earlier decisions do not count.

        Override it to use whole cost curves or saturation points. Otherwise the next view contains enough: limits that
        include memory, and each worker's speed at an equal share as its prediction.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return all that was learned, as plain data for JSON."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027 - nothing learnt, nothing to load
        """Restore ``state``, a result of :meth:`state_dict`."""


def standing(view: BalanceView) -> tuple[int, ...]:
    """Return the shares of ``view`` if they still fit its batch and limits, otherwise the nearest proportional ones."""
    limits = view.limits
    fits = len(view.shares) == len(view.members) and sum(view.shares) == view.global_batch
    if fits and all(map(le, limits.lower, view.shares)) and all(map(le, view.shares, limits.upper)):
        return view.shares
    weights = view.shares if len(view.shares) == len(view.members) else [1] * len(view.members)
    return proportional(weights, view.global_batch, limits)


def check_predictor(spec: str) -> str:
    """Return the specification of a predictor; raise ``UnknownNameError`` or ``ConfigError`` if it is not one."""
    # An object would be shared, but each worker needs its own predictor.
    if not isinstance(spec, str):
        names = ", ".join(predictors.listed())
        raise ConfigError(f"predictor = {spec!r}: give a name ({names}); each worker gets its own predictor")
    predictors.resolve(spec)
    return spec


balancers: Registry[Balancer] = Registry("balancer", Balancer)  # type: ignore[type-abstract]
"""The registry of balancers."""


class WrappingBalancer(Balancer):
    """A balancer that changes some behavior of the balancer inside and forwards everything else.

    Override :meth:`split`, call ``self.inner.split(view)`` there and change its answer. A wrapper with its own state
    adds it to ``super().state_dict()``.

    Args:
        inner: a balancer or its name.

    Raises:
        UnknownNameError: no such balancer.
        ConfigError: the specification cannot be parsed.
    """

    predictor: str = forwarded()
    adapts: bool = forwarded()
    partial_updates: bool = forwarded()
    made_for: int | None = forwarded()

    def __init__(self, inner: str | Balancer) -> None:
        self.inner = balancers.resolve(inner)

    def split(self, view: BalanceView) -> Split:
        return self.inner.split(view)

    def profiled(self, profiles: Mapping[int, Profile]) -> None:
        self.inner.profiled(profiles)

    def state_dict(self) -> dict[str, Any]:
        return {"inner": self.inner.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        with inside("inner"):
            self.inner.load_state_dict(read(dict[str, Any], read(dict[str, Any], state).get("inner")))


class Even(Balancer):
    """Equal shares for all workers within the limits, as DistributedDataParallel has."""

    adapts = False

    def split(self, view: BalanceView) -> Split:
        shares = proportional([1.0] * len(view.members), view.global_batch, view.limits)
        return Split(shares, "even: the same for all workers")


# [default] Indistinguishable changes are skipped; a larger value lost as much as it allows, in simulated closed loops
# with 5 to 25 % noise.
DEFAULT_FRACTION = 0.005

# [default] Part of the gain that chance alone would promise, required on top of the fraction. A larger part delayed
# unequal workers in the same loops; PresumeEqual keeps equal workers from drifting.
_CHANCE_SHARE = 0.05


class Hysteresis(WrappingBalancer):
    """Keeps the current shares unless another balancer's shorten the predicted iteration enough.

    The predicted time of an iteration is max_i x_i / v̂_i; the gain is 1 − (time with the new shares) / (time with the
    current ones). Equal workers never measure equal speeds, so without a threshold the split would follow the noise.
    Workers that really differ gain far more than the threshold and get the inner balancer's full answer immediately.
    Predictions from few or noisy reports promise a gain by chance (:func:`chance_gain`); a part of it is added to the
    threshold.

    Args:
        inner: a balancer or its name.
        fraction: gain from which a change is made, at least 0, below 1.
    """

    def __init__(self, inner: str | Balancer, *, fraction: float = DEFAULT_FRACTION) -> None:
        good = isinstance(fraction, (int, float)) and not isinstance(fraction, bool) and 0.0 <= fraction < 1.0
        if not good:
            raise ConfigError(f"hysteresis = {fraction!r} must be at least 0 and below 1, for instance 0.02")
        super().__init__(inner)
        self.fraction = float(fraction)

    def split(self, view: BalanceView) -> Split:
        """Return the inner balancer's shares if the gain is sufficient, otherwise the current ones."""
        proposed = self.inner.split(view)
        present = standing(view)
        if present != view.shares:
            return proposed  # the current ones no longer fit this batch or these limits
        if not view.ready:
            return proposed
        if proposed.shares == present:
            return proposed
        needed = self.fraction + _CHANCE_SHARE * chance_gain(view)
        now_s, then_s = iteration_s(present, view), iteration_s(proposed.shares, view)
        gain = 1.0 - then_s / now_s
        if gain > needed:
            return Split(proposed.shares, f"{proposed.reason}; predicted iteration {now_s:.4g} s → {then_s:.4g} s")
        return Split(present, f"kept: a change would gain {gain:.1%}, less than {needed:.1%}")


def iteration_s(shares: tuple[int, ...], view: BalanceView) -> float:
    """Return the predicted local time of the slowest worker, in seconds."""
    times_s: Iterator[float] = map(truediv, shares, view.predicted_per_s)
    return max(times_s)


def chance_gain(view: BalanceView) -> float:
    """Return the gain that a proportional split would promise by chance if all workers were equally loaded."""
    n = len(view.doubts)
    if n < 2:
        return 0.0
    # The largest of n errors of relative standard deviation σ is σ √(2 ln n) for large n, and below that for small n.
    return math.sqrt(math.fsum(map(mul, view.doubts, view.doubts)) / n * 2.0 * math.log(n))
