"""What replicas exchange around a step beside gradients: what all kinds of it do, and one that does nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor

from uneven.core.actions import StepPlan
from uneven.data.order import Portion, Portions
from uneven.run.parameters.plans import Plans


class Exchanging(Protocol):
    """One worker's part in what replicas exchange beside the mean of all gradients.

    Attributes:
        clock: steps taken.
        followed: whether :meth:`passing` is called with each pass, as batches may be handed out ahead of their steps.
    """

    clock: int
    followed: bool

    def plan(self) -> StepPlan:
        """What the policy wants around the step that is about to begin.

        Raises:
            ConfigError: something that is not carried.
        """
        ...

    def before(self, part: Portion, plan: StepPlan) -> None:
        """A step is about to begin."""
        ...

    def passing(self, padded: bool) -> None:
        """A pass is on a batch that only fills up a last part, or on one that counts."""
        ...

    def still(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Before a step of the optimizer: gradients that do not count must not be learnt from."""
        ...

    def after(self, part: Portion, leaving: bool) -> bool:
        """A step is over.

        Args:
            leaving: the loop was left in it, perhaps because of an error.

        Returns:
            Whether all workers have waited for each other in it.
        """
        ...

    def paused(self) -> None:
        """The newest step has just ended, and what comes until the next one is none."""
        ...

    @property
    def apart(self) -> bool:
        """Whether replicas differ, as they have taken steps of their own, where that keeps newcomers waiting; the same
        on all workers."""
        ...

    def members_changed(self, members: tuple[int, ...], generation: int) -> None:
        """Others take part from the next step on."""
        ...

    def settle(self) -> None:
        """Give the others what they lack, as at the end of an epoch of an elastic run: what a worker is lost with then
        still comes again in that epoch."""
        ...

    def begins_as(self) -> Tensor | None:
        """What a newcomer begins with, beside the state that it is given; None for nothing."""
        ...

    def joined(self, begins_as: Tensor | None) -> None:
        """This worker has just joined, and has the state of one of the others, where :meth:`begins_as` said this."""
        ...

    @property
    def exchanging(self) -> bool:
        """Whether an exchange is under way beside the training."""
        ...

    def evaluated(self) -> AbstractContextManager[None]:
        """Inside, the model is the one that the policy names."""
        ...

    def state_dict(self, parts: Portions, unused: Portions = ()) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Numbers, and vectors of shape (size,). "lacking" is from which place on samples are not in the model.

        Args:
            parts: in hand; their steps are not counted yet.
            unused: batches, in hand or not, which no step of an optimizer has taken in.
        """
        ...

    def check(self, numbers: dict[str, Any], vectors: dict[str, Tensor]) -> None:
        """See that :meth:`load_state_dict` can take this up. Nothing is changed.

        Raises:
            CheckpointError: it does not fit, or is damaged.
        """
        ...

    def load_state_dict(self, numbers: dict[str, Any], vectors: dict[str, Tensor]) -> None:
        """Inverse of :meth:`state_dict`."""
        ...


class Alike:
    """Where nothing but everybody's gradients is averaged: replicas are the same, and there is nothing to exchange."""

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
        """Everybody has waited for everybody's gradients."""
        self.clock += 1
        return True

    def paused(self) -> None: ...

    def settle(self) -> None: ...

    def begins_as(self) -> None: ...

    def joined(self, begins_as: Tensor | None) -> None: ...

    @contextmanager
    def evaluated(self) -> Iterator[None]:
        """Every replica is the model to evaluate."""
        yield

    def state_dict(self, parts: Portions, unused: Portions = ()) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Nothing."""
        return {}, {}

    def check(self, numbers: dict[str, Any], vectors: dict[str, Tensor]) -> None: ...

    def load_state_dict(self, numbers: dict[str, Any], vectors: dict[str, Tensor]) -> None: ...
