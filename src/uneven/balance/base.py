"""The balancer interface. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from uneven.core.actions import Split
from uneven.core.views import BalanceView
from uneven.registry import Registry


class Balancer(ABC):
    """How many samples does each worker take in the next iteration?

    The slow loop calls :meth:`split` on every rank with the same view, so all ranks must come to the same
    answer: no clock, no randomness. ``sum(split.shares) == view.global_batch`` and the limits hold, always.

    Attributes:
        predictor: name of the predictor that fills ``view.predicted_per_s`` ("ema", "last", …).
        adapts: False if the split never changes once it is made; then nothing needs to be gathered.
    """

    predictor: str = "ema"
    adapts: bool = True

    @abstractmethod
    def split(self, view: BalanceView) -> Split:
        """Decide. Before every worker has reported (``not view.ready``) the current shares are a fair answer."""

    def state_dict(self) -> dict[str, Any]:
        """Everything learnt, as plain JSON-able data."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of :meth:`state_dict`."""


balancers: Registry[Balancer] = Registry("balancer", Balancer)  # type: ignore[type-abstract]
"""Balancers by name."""
