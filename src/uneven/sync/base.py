"""The interface of synchronisation policies, and what each says about itself. Pure."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum
from typing import Any

from uneven.core.actions import Payload, StepPlan
from uneven.core.forward import forwarded
from uneven.core.pace import Pace as Pace
from uneven.core.plain import inside, read
from uneven.core.views import SyncView
from uneven.registry import Registry


class Evaluated(Enum):
    """Which model is the one to evaluate and to save."""

    REPLICA = "replica"  # any worker's own; they are equal
    MEAN = "mean"  # the mean of the replicas
    CENTRE = "centre"  # the server's parameters; where replicas meet among themselves, the point they last started from


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a policy says about itself, for ``uneven plan``, for messages and for checks before a run.

    Attributes:
        payloads: everything that may ever travel.
        every: steps between two exchanges of a worker.
        pace: whom a worker waits for.
        stops: whether the others stop when one worker dies.
        moves, waits, stale, lost_when_one_dies: the same and more in words, without a full stop.
    """

    payloads: tuple[Payload, ...]
    every: int = 1
    pace: Pace
    stops: bool
    moves: str
    waits: str
    stale: str
    lost_when_one_dies: str


class SyncPolicy(ABC):
    """When, and with whom, do replicas agree?

    The engine calls :meth:`plan` on each worker before each of its steps. The answer says what is exchanged,
    with whom, when and how it is merged; how it is carried is the carrier's business. A worker that leaves
    or joins shows up in ``view.members``; no other hook is needed for it.

    Compose by wrapping: a policy that holds another one asks it for its plan and changes the exchanges
    (``dataclasses.replace``), so wrappers work with policies that they have never heard of.

    A constructor keeps each argument in an attribute of the same name; ``repr`` shows them, and ranks compare it.

    Attributes:
        evaluated: which model the session offers for evaluation and checkpoints.
    """

    evaluated: Evaluated = Evaluated.REPLICA

    @property
    def constant(self) -> bool:
        """Whether a worker's plan is the same at every step as long as members and sites are, so that it need not be
        asked for before each.

        A class with a ``plan`` of its own says so anew, as it may build on one that plans otherwise.
        """
        return False

    def __init_subclass__(cls) -> None:
        if "plan" in vars(cls) and "constant" not in vars(cls):
            cls.constant = SyncPolicy.constant  # type: ignore[method-assign]

    @abstractmethod
    def plan(self, view: SyncView) -> StepPlan:
        """What this worker does around its next step. The same view always gets the same answer."""

    @property
    def facts(self) -> Facts | None:
        """What it says about itself; None for a policy that says nothing, which some wrappers then refuse."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """Anything that has to survive a restart, as plain JSON-able data."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027 - nothing kept, nothing to load
        """Inverse of :meth:`state_dict`."""

    def __repr__(self) -> str:
        names = [name for name in inspect.signature(type(self)).parameters if hasattr(self, name)]
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"


policies: Registry[SyncPolicy] = Registry("synchronisation policy", SyncPolicy)  # type: ignore[type-abstract]
"""Synchronisation policies by name."""


class WrappingPolicy(SyncPolicy):
    """A policy that holds another one and changes what it wants to change; everything else is the inner one's.

    Override :meth:`plan`, ask ``self.inner.plan(view)`` there and change the exchanges (``dataclasses.replace``). If
    that makes them travel at other times or with others, override :attr:`facts` too. A wrapper with a state of its
    own adds it to ``super().state_dict()``.

    Args:
        inner: a policy, or its name.

    Raises:
        UnknownNameError: no such policy.
        ConfigError: a specification that cannot be read.
    """

    evaluated: Evaluated = forwarded()

    def __init__(self, inner: str | SyncPolicy) -> None:
        self.inner = policies.resolve(inner)

    def plan(self, view: SyncView) -> StepPlan:
        return self.inner.plan(view)

    @property
    def constant(self) -> bool:
        """Whether the inner policy's plan is. A subclass with a ``plan`` of its own says so anew."""
        return self.inner.constant

    @property
    def facts(self) -> Facts | None:
        return self.inner.facts

    def state_dict(self) -> dict[str, Any]:
        return {"inner": self.inner.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        with inside("inner"):  # checkpoints of before wrappers forwarded this have nothing there
            self.inner.load_state_dict(read(dict[str, Any], read(dict[str, Any], state).get("inner", {})))
