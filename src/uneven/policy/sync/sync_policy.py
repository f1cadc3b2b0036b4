"""The interface of synchronization policies and the facts that a policy states."""

import inspect
from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Protocol

from uneven.policy.core.actions import Payload, StepPlan
from uneven.policy.core.forward import forwarded
from uneven.policy.core.pace import Pace as Pace
from uneven.policy.core.plain import inside, read
from uneven.policy.core.registry import Registry
from uneven.policy.core.views import SyncView


class EvaluationModel(Enum):
    """The model that is evaluated and saved."""

    REPLICA = "replica"  #: any worker's; they are equal
    MEAN = "mean"  #: the mean of the replicas
    CENTRE = "centre"  #: the server's parameters; without a server, the point from which the replicas last started


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The properties of a policy, for ``uneven plan``, for messages and for checks before a run."""

    payloads: tuple[Payload, ...]  #: every payload that it may exchange
    every: int = 1  #: steps between two exchanges of a worker
    begins: int = 0  #: steps before the first of these blocks
    pace: Pace  #: the workers that a worker waits for
    stops: bool  #: whether the others stop when one worker dies
    moves: str  #: the exchanges, in words, without a full stop
    waits: str  #: the waits, in words
    stale: str  #: the staleness of the parameters, in words
    lost_when_one_dies: str  #: the work that is lost with a worker, in words
    #: the most steps between two exchanges with which a published run learned; None if unknown
    shown: int | None = None


class TunedPolicy(Protocol):
    """A policy that is tuned by the accuracy that models lose at other sites.

    Every ``period`` steps each site scores its own model on ``sample`` of its samples, and one that ``judge`` names.
    ``heard`` takes the result and returns the next setting of the ``knob``.
    """

    period: int
    sample: int
    judge: str
    knob: str

    @property
    def setting(self) -> int | float: ...

    def heard(self, clock: int, *, loss: float, share: float) -> int | float: ...


class SyncPolicy(ABC):
    """A rule for when replicas agree, and with which workers.

    The engine calls :meth:`plan` on each worker before each step. The plan lists what is exchanged, with which workers,
    when, and how it is merged; the carrier decides how it travels. Workers that leave or join appear in
    ``view.members``; no other hook is needed.

    To compose, wrap: a policy asks the policy inside for its plan and changes the exchanges (``dataclasses.replace``),
    so wrappers work with unknown policies. A constructor keeps each argument in an attribute of the same name, because
    ``repr`` shows them and ranks compare it. Constructors raise ``ConfigError`` for an argument out of range and
    ``UnknownNameError`` for an unknown name.

    Attributes:
        evaluation_model: the model that the session offers for evaluation and checkpoints.
    """

    evaluation_model: EvaluationModel = EvaluationModel.REPLICA

    @property
    def constant(self) -> bool:
        """True if a worker's plan stays the same while members and sites do, so that one call of ``plan`` is enough.

        A class that overrides ``plan`` must override this too; otherwise it is False.
        """
        return False

    def __init_subclass__(cls) -> None:
        # A parent's True need not hold for a new ``plan``, so a class that overrides it starts from False.
        if "plan" in vars(cls) and "constant" not in vars(cls):
            cls.constant = SyncPolicy.constant  # type: ignore[method-assign]

    @abstractmethod
    def plan(self, view: SyncView) -> StepPlan:
        """Return the exchanges and waits of this worker's next step, from ``view``; equal views get equal plans."""

    @property
    def facts(self) -> Facts | None:
        """The policy's facts, or None if it states none; some wrappers do not accept such a policy."""
        return None

    @property
    def tuned(self) -> TunedPolicy | None:
        """The policy itself if visits of models tune it, otherwise None."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """Return the state that must survive a restart, as plain data for JSON."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027 - nothing kept, nothing to load
        """Restore ``state``, a result of :meth:`state_dict`."""

    def __repr__(self) -> str:
        names = [name for name in inspect.signature(type(self)).parameters if hasattr(self, name)]
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"


policies: Registry[SyncPolicy] = Registry("synchronisation policy", SyncPolicy)  # type: ignore[type-abstract]
"""The registry of synchronization policies."""


class WrappingPolicy(SyncPolicy):
    """A policy that changes some behavior of the policy inside and forwards everything else.

    Override :meth:`plan`, call ``self.inner.plan(view)`` there and change the exchanges (``dataclasses.replace``). If
    that changes when they travel or which workers take part, override :attr:`facts` too. A wrapper with its own state
    adds it to ``super().state_dict()``.

    Args:
        inner: a policy or its name.

    Attributes:
        tried: the policies inside with which ``uneven plan`` tries this one; empty for the default only.

    Raises:
        UnknownNameError: no such policy.
        ConfigError: the specification cannot be parsed.
    """

    tried: ClassVar[tuple[str, ...]] = ()
    evaluation_model: EvaluationModel = forwarded()

    def __init__(self, inner: str | SyncPolicy) -> None:
        self.inner = policies.resolve(inner)

    def plan(self, view: SyncView) -> StepPlan:
        return self.inner.plan(view)

    @property
    def constant(self) -> bool:
        """True if the inner policy's plan is constant; a subclass that overrides ``plan`` must override this too."""
        return self.inner.constant

    @property
    def facts(self) -> Facts | None:
        return self.inner.facts

    @property
    def tuned(self) -> TunedPolicy | None:
        return self.inner.tuned

    def state_dict(self) -> dict[str, Any]:
        return {"inner": self.inner.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        with inside("inner"):  # checkpoints from before wrappers forwarded this have no such key
            self.inner.load_state_dict(read(dict[str, Any], read(dict[str, Any], state).get("inner", {})))
