"""The interface of synchronisation policies. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum
from typing import Any

from uneven.core.actions import StepPlan
from uneven.core.views import SyncView
from uneven.registry import Registry


class Evaluated(Enum):
    """Which model is the one to evaluate and to save."""

    REPLICA = "replica"  # any worker's own; they are equal
    MEAN = "mean"  # the mean of the replicas
    CENTRE = "centre"  # the shared copy


class SyncPolicy(ABC):
    """When, and with whom, do replicas agree?

    The engine calls :meth:`plan` on each worker before each of its steps. The answer says what is exchanged,
    with whom, when and how it is merged; how it is carried is the carrier's business. A worker that leaves
    or joins shows up in ``view.members``; no other hook is needed for it.

    Compose by wrapping: a policy that holds another one asks it for its plan and changes the exchanges
    (``dataclasses.replace``), so wrappers work with policies that they have never heard of.

    Attributes:
        evaluated: which model the session offers for evaluation and checkpoints.
    """

    evaluated: Evaluated = Evaluated.REPLICA

    @abstractmethod
    def plan(self, view: SyncView) -> StepPlan:
        """What this worker does around its next step. The same view always gets the same answer."""

    def state_dict(self) -> dict[str, Any]:
        """Anything that has to survive a restart, as plain JSON-able data."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027 - nothing kept, nothing to load
        """Inverse of :meth:`state_dict`."""


policies: Registry[SyncPolicy] = Registry("synchronisation policy", SyncPolicy)  # type: ignore[type-abstract]
"""Synchronisation policies by name."""
