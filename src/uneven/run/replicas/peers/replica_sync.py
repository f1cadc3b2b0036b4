"""The interface of exchanges around a step, in addition to gradients, and an implementation that does nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor

from uneven.policy.core.actions import StepPlan
from uneven.policy.samples.order import Portion, Portions
from uneven.run.replicas.peers.plans import Plans


class ReplicaSync(Protocol):
    """One worker's part in exchanges in addition to the mean of all gradients.

    ``clock`` counts steps. ``followed`` means that :meth:`passing` is called with each pass, as batches may be handed
    out ahead of their steps.
    """

    clock: int
    followed: bool

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

    def begins_as(self) -> Tensor | None:
        """Return what a newcomer needs in addition to the state, any shape; None for nothing."""
        ...

    def joined(self, begins_as: Tensor | None) -> None:
        """Take the :meth:`begins_as` of another worker, in its shape; this worker has just joined with that worker's
        state."""
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

    def __init__(self, plans: Plans) -> None:
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

    def begins_as(self) -> None: ...

    def joined(self, begins_as: Tensor | None) -> None: ...

    @contextmanager
    def evaluated(self) -> Iterator[None]:
        yield

    def state_dict(self, parts: Portions, unused: Portions = ()) -> tuple[dict[str, Any], dict[str, Tensor]]:
        return {}, {}

    def check(self, numbers: dict[str, Any], vectors: dict[str, Tensor]) -> None: ...

    def load_state_dict(self, numbers: dict[str, Any], vectors: dict[str, Tensor]) -> None: ...
