"""The interface of one worker's exchanges in addition to gradients, and the one that exchanges nothing."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from uneven.policy.control.step_plans import StepPlans
from uneven.policy.core.actions import StepPlan
from uneven.policy.core.membership import Meeting, Members
from uneven.policy.samples.order import Portion, Portions


class NoSync:
    """The interface of one worker's exchanges, and the one that exchanges nothing: all gradients are averaged.

    ``clock`` counts steps. ``gradients_only`` means that replicas are equal, because only the mean of all gradients is
    exchanged. ``followed`` means that :meth:`passing` is called with each pass, as batches may be handed
    out ahead of their steps.
    """

    followed = False
    gradients_only = True
    clock = 0

    def __init__(self, plans: StepPlans) -> None:
        self.plans = plans

    def plan(self) -> StepPlan:
        """Return the policy's plan for the next step; raises :class:`ConfigError` if it is not supported."""
        return self.plans.at(self.clock)

    def before(self, part: Portion, plan: StepPlan) -> None:
        """Prepare for a step that is about to start."""

    def passing(self, padded: bool) -> None:
        """Note whether the next pass is on a padded batch, which must not count."""

    def still(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Remove gradients that must not count before an optimizer step."""

    def after(self, part: Portion, leaving: bool) -> bool:
        """Exchange after a step, and return whether all workers have waited for each other.
        ``leaving`` means that the loop was left in it, perhaps because of an error."""
        self.clock += 1
        return True  # every worker has waited for all gradients

    def paused(self) -> None:
        """Stop timing steps until the next one starts."""

    @property
    def apart(self) -> bool:
        """True if replicas differ because of separate steps and newcomers must wait; the same on all workers."""
        return False

    def members_changed(self, members: Members, generation: int) -> None:
        """Change the members from the next step on."""
        self.plans.members_changed(members, generation)

    def settle(self) -> None:
        """Merge the steps that are not merged yet, as at the end of an epoch of an elastic run."""

    def for_newcomers(self) -> Any:
        """Return the state that a newcomer takes over, as plain data and tensors of any shape."""

    def take_over(self, state: Any) -> None:
        """Take the :meth:`for_newcomers` of another worker; this worker has just joined with its clock."""

    def groups(self) -> Meeting | None:
        """Return the groups that average gradients in this step of an elastic run; None for all members together."""
        return None

    @property
    def exchanging(self) -> bool:
        """True while an exchange runs in the background."""
        return False

    @contextmanager
    def evaluation_model(self) -> Iterator[None]:
        """Hold the policy's model to evaluate in the replica. All workers enter; see ``Session.evaluation_model``."""
        yield

    def state_dict(self, parts: Portions, unused: Portions = ()) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return numbers, and vectors of shape (size,). "lacking" is the place from which samples are not in the model.
        Steps of ``parts`` in flight are not counted yet; no optimizer step has used the ``unused`` ones."""
        return {}, {}

    def check(self, numbers: dict[str, Any], vectors: dict[str, Tensor]) -> None:
        """Raise :class:`CheckpointError` if :meth:`load_state_dict` cannot load these, vectors (size,); nothing is
        changed."""

    def load_state_dict(self, numbers: dict[str, Any], vectors: dict[str, Tensor]) -> None:
        """Load the numbers, and vectors (size,), that :meth:`state_dict` returned, also with other workers. Another
        policy starts from scratch."""
