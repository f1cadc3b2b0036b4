"""The balancer interface. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from operator import le
from typing import Any

from uneven.balance.profile import Profile
from uneven.core.actions import Split
from uneven.core.apportion import proportional
from uneven.core.forward import forwarded
from uneven.core.plain import inside, read
from uneven.core.views import BalanceView
from uneven.errors import ConfigError
from uneven.predict import predictors
from uneven.registry import Registry


class Balancer(ABC):
    """How many samples does each worker take in the next iteration?

    The slow loop calls :meth:`split` on every rank with the same view, so all ranks must come to the same
    answer: no clock, no randomness. ``sum(split.shares) == view.global_batch`` and the limits hold, always.

    Attributes:
        predictor: name of the predictor that fills ``view.predicted_per_s`` ("light", "ema", "last", …).
        adapts: False if the split never changes once it is made; then nothing needs to be gathered.
        partial_updates: True if it may also be asked when only workers whose speed has suddenly changed have reported,
            and the last reports of the others stand; False if it needs a new report of every worker.
        made_for: the number of workers that it is for; None if it is for any.
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
        """Decide.

        Before every worker has reported (``not view.ready``), :func:`standing` is a fair answer.
        """

    def profiled(self, profiles: Mapping[int, Profile]) -> None:  # noqa: B027 - most do without
        """What was measured of each rank before the first iteration; what was decided until then does not count.

        For those who use whole cost curves or saturation points. All others find what they need in the next view:
        limits that heed memory, and as each worker's prediction its speed at an equal share.
        """

    def state_dict(self) -> dict[str, Any]:
        """Everything learnt, as plain JSON-able data."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027 - nothing learnt, nothing to load
        """Inverse of :meth:`state_dict`."""


def standing(view: BalanceView) -> tuple[int, ...]:
    """The present shares if they still fit batch and limits, else the nearest ones in proportion that do."""
    limits = view.limits
    fits = len(view.shares) == len(view.members) and sum(view.shares) == view.global_batch
    if fits and all(map(le, limits.lower, view.shares)) and all(map(le, view.shares, limits.upper)):
        return view.shares
    weights = view.shares if len(view.shares) == len(view.members) else [1] * len(view.members)
    return proportional(weights, view.global_batch, limits)


def check_predictor(spec: str) -> str:
    """The specification, if it stands for a predictor. Each worker gets its own, so an object is refused.

    Raises:
        UnknownNameError: no such predictor, or no such option of it.
        ConfigError: not a specification.
    """
    if not isinstance(spec, str):
        names = ", ".join(predictors.listed())
        raise ConfigError(f"predictor = {spec!r}: give its name ({names}), each worker gets its own")
    predictors.resolve(spec)
    return spec


balancers: Registry[Balancer] = Registry("balancer", Balancer)  # type: ignore[type-abstract]
"""Balancers by name."""


class WrappingBalancer(Balancer):
    """A balancer that holds another one and changes what it wants to change; everything else is the inner one's.

    Override :meth:`split`, ask ``self.inner.split(view)`` there, and answer something better. A wrapper with a state
    of its own adds it to ``super().state_dict()``.

    Args:
        inner: a balancer, or its name.

    Raises:
        UnknownNameError: no such balancer.
        ConfigError: a specification that cannot be read.
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
