"""The balancer interface."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from operator import le
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

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "amends" in vars(cls):
            raise ConfigError(f"{cls.__name__}.amends has another name: call it partial_updates")

    @abstractmethod
    def split(self, view: BalanceView) -> Split:
        """Return the split of the next iteration.

        Before every worker has reported (``not view.ready``), :func:`standing` is a reasonable answer.
        """

    def profiled(self, profiles: Mapping[int, Profile]) -> None:  # noqa: B027 - most do without
        """Receive each rank's measurements from before the first iteration; earlier decisions do not count.

        Override it to use whole cost curves or saturation points. Otherwise the next view contains enough: limits that
        include memory, and each worker's speed at an equal share as its prediction.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return all that was learned, as plain JSON-able data."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027 - nothing learnt, nothing to load
        """Restore what :meth:`state_dict` returned."""


def standing(view: BalanceView) -> tuple[int, ...]:
    """Return the current shares if they still fit batch and limits, otherwise the nearest proportional ones that do."""
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
        raise ConfigError(f"predictor = {spec!r}: give its name ({names}), each worker gets its own")
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
