"""The interface of exchanges around a step, in addition to gradients, and an implementation that does nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor

from uneven.policy.control.step_plans import StepPlans
from uneven.policy.core.actions import StepPlan
from uneven.policy.core.membership import Meeting
from uneven.policy.samples.order import Portion, Portions


class ReplicaSync(Protocol):
    """One worker's part in exchanges in addition to the mean of all gradients.

    ``clock`` counts steps. ``gradients_only`` means that replicas are equal, because only the mean of all gradients is
    exchanged. ``followed`` means that :meth:`passing` is called with each pass, as batches may be handed
    out ahead of their steps.
    """

    clock: int
    followed: bool
    gradients_only: bool

    def plan(self) -> StepPlan:
        """Return the policy's plan for the next step; raises :class:`ConfigError` if it is not supported."""
        ...

    def before(self, part: Portion, plan: StepPlan) -> None:
        """Prepare for a step that is about to start."""
        ...

    def passing(self, padded: bool) -> None:
        """Note whether the next pass is on a padded batch, which must not count."""
        ...

    def still(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Remove gradients that must not count before an optimizer step."""
        ...

    def after(self, part: Portion, leaving: bool) -> bool:
        """Exchange after a step, and return whether all workers have waited for each other.
        ``leaving`` means that the loop was left in it, perhaps because of an error."""
        ...

    def paused(self) -> None:
        """Stop timing steps until the next one starts."""
        ...

    @property
    def apart(self) -> bool:
        """True if replicas differ because of separate steps and newcomers must wait; the same on all workers."""
        ...

    def members_changed(self, members: tuple[int, ...], generation: int) -> None:
        """Change the members from the next step on."""
        ...

    def settle(self) -> None:
        """Merge the steps that are not merged yet, as at the end of an epoch of an elastic run."""
        ...

    def for_newcomers(self) -> Any:
        """Return the state that a newcomer takes over, as plain data and tensors of any shape."""
        ...

    def take_over(self, state: Any) -> None:
        """Take the :meth:`for_newcomers` of another worker; this worker has just joined with its clock."""
        ...

    def groups(self) -> Meeting | None:
        """Return the groups that average gradients in this step of an elastic run; None for all members together."""
        ...

    @property
    def exchanging(self) -> bool:
        """True while an exchange runs in the background."""
        ...

    def evaluated(self) -> AbstractContextManager[None]:
        """Hold the policy's model to evaluate in the replica."""
        ...

    def state_dict(self, parts: Portions, unused: Portions = ()) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return numbers, and vectors of shape (size,). "lacking" is the place from which samples are not in the model.
        Steps of ``parts`` in flight are not counted yet; no optimizer step has used the ``unused`` ones."""
        ...

    def check(self, numbers: dict[str, Any], vectors: dict[str, Tensor]) -> None:
        """Raise :class:`CheckpointError` if :meth:`load_state_dict` cannot load these, vectors (size,); nothing is
        changed."""
        ...

    def load_state_dict(self, numbers: dict[str, Any], vectors: dict[str, Tensor]) -> None:
        """Load the numbers, and vectors (size,), that :meth:`state_dict` returned."""
        ...


class NoSync:
    """Exchanges nothing: all gradients are averaged, so replicas are equal."""

    followed = exchanging = apart = False
    gradients_only = True

    def __init__(self, plans: StepPlans) -> None:
        self.plans = plans
        self.clock = 0

    def members_changed(self, members: tuple[int, ...], generation: int) -> None:
        self.plans.members_changed(members, generation)

    def plan(self) -> StepPlan:
        return self.plans.at(self.clock)

    def before(self, part: Portion, plan: StepPlan) -> None: ...

    def passing(self, padded: bool) -> None: ...

    def still(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None: ...

    def after(self, part: Portion, leaving: bool) -> bool:
        self.clock += 1
        return True  # every worker has waited for all gradients

    def paused(self) -> None: ...

    def settle(self) -> None: ...

    def for_newcomers(self) -> None: ...

    def take_over(self, state: None) -> None: ...

    def groups(self) -> None: ...

    @contextmanager
    def evaluated(self) -> Iterator[None]:
        yield

    def state_dict(self, parts: Portions, unused: Portions = ()) -> tuple[dict[str, Any], dict[str, Tensor]]:
        return {}, {}

    def check(self, numbers: dict[str, Any], vectors: dict[str, Tensor]) -> None: ...

    def load_state_dict(self, numbers: dict[str, Any], vectors: dict[str, Tensor]) -> None: ...
