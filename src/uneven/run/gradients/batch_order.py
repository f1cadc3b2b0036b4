"""The weight of each batch, and the check that its step ends before parameters are exchanged."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from uneven.errors import TrainingError
from uneven.policy.core.actions import Payload, StepPlan
from uneven.policy.core.batch_weight import BatchWeight
from uneven.policy.samples.order import Portion
from uneven.run.gradients.backward_start import on_entering
from uneven.run.model.check import parts_called
from uneven.run.model.hooks import ModelHook
from uneven.run.samples.in_flight import InFlightBatches


class Turns:
    """The weights of this worker's batches among those whose gradients are averaged; ``least`` samples if one only
    pads."""

    def __init__(self, rank: int, members: tuple[int, ...]) -> None:
        self.plan = StepPlan()
        self.least = 1
        self.all_average = False
        self._rank = rank
        self._members = members
        self._group: tuple[int, ...] | None = None  # ranks whose gradients are averaged

    def members_changed(self, members: tuple[int, ...]) -> None:
        self._members = members

    def take(self, plan: StepPlan) -> None:
        if plan is not self.plan:
            self.plan = plan
            self._group = next((one.members for one in plan.exchanges if one.payload is Payload.GRADIENT), None)
            self.all_average = self._group is not None and len(self._group) == len(self._members)

    def of(self, part: Portion) -> BatchWeight:
        own, group = part.batch(self._rank), self._group
        whole = part.size if group is None or self.all_average else sum(map(part.batch, group))
        return BatchWeight(part.iteration, part.epoch, own or self.least, own / max(1, whole), group is not None)


class PassFollower:
    """Raises an error if a script fetches batches ahead while parameters are exchanged between steps.

    The exchange happens when the script asks for its next batch, and counts the current batch's samples. If the script
    asks before it has stepped the optimizer (a prefetcher does), the exchanged parameters lack those samples. Under
    shadow policies the order does not matter: ``strict`` is false. ``padded`` is called with whether a pass's batch
    only pads.
    """

    def __init__(
        self, model: nn.Module, hands: InFlightBatches, *, strict: bool, padded: Callable[[bool], None], policy: str
    ) -> None:
        self._hands = hands
        self._strict = strict
        self._padded = padded
        self._policy = policy
        self._turn: BatchWeight | None = None
        before = ModelHook(self._before)
        after = ModelHook(self._after)
        called = parts_called(model)
        self._handles = [one.register_forward_pre_hook(before) for one in called]
        self._handles += [one.register_forward_hook(after) for one in called]

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _before(self, model: nn.Module, args: Any) -> None:
        if torch.is_grad_enabled() and (turn := self._hands.turn) is not None:
            self._turn = turn
            self._check(turn)
            self._padded(turn.weight == 0.0)

    def _after(self, model: nn.Module, args: Any, output: Any) -> None:
        if self._strict and self._turn is not None and torch.is_grad_enabled():
            on_entering(output, partial(self._check, self._turn))

    def _check(self, turn: BatchWeight, gradient: torch.Tensor | None = None) -> None:
        newest = self._hands.newest
        if self._strict and (newest is not turn or (gradient is not None and self._hands.over)):
            raise TrainingError(
                f"iteration {turn.iteration}: the loader was asked for the next batch before the step of this one "
                f"ended. {self._policy} exchanges parameters when the next batch is requested: request it after "
                "optimizer.step(), without a prefetcher, a look ahead or a reused batch, or use sync='bsp'"
            )
