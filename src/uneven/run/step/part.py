"""A part: whatever wants something of a step, between the user's loop and the other workers.

A step is a fixed row of moments. A part says what it wants in those that it overrides, and is asked in no other::

    for x, y in loader              before_step(step)       the batch is about to be handed out
        loss = f(model(x), y)
        loss.backward()                                     gradients are exchanged under the backward pass
        optimizer.step()            gradients_ready(step)   they are in .grad, and the optimizer has not used them
        optimizer.zero_grad()
    next(loader)                    after_step(step)        the step is over

Parts are asked in the order in which the session was given them, before each other in all moments alike. One that
raises ends the run, and the error says which part it was. A module of the model may bring a part along, as its
attribute ``uneven_part``: ``session.setup`` takes it up, behind those that the session was given.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from uneven.policy.core.actions import Payload, StepPlan, Via

if TYPE_CHECKING:  # a part need not load torch to say what it wants
    from collections.abc import Callable

    import torch
    from torch import nn

    from uneven.policy.core.batch_weight import BatchWeight
    from uneven.run.lines import Lines


@dataclass(frozen=True, slots=True)
class Step:
    """One step of this worker.

    Attributes:
        clock: steps that this worker has taken before, in this run.
        iteration: counted over the whole run, also when it is resumed.
        rank: this worker.
        members: ranks of all workers; in an elastic run, of those that were there when it began.
        shares: samples of each of them in the global batch, in the order of ``members``.
        plan: what the synchronisation policy wants around this step.
    """

    clock: int
    iteration: int
    epoch: int
    rank: int
    members: tuple[int, ...]
    shares: tuple[int, ...]
    plan: StepPlan

    @property
    def samples(self) -> int:
        """x_i: this worker's samples that count; 0 if its batch only fills up a last part."""
        return self.shares[self.members.index(self.rank)]

    @property
    def weight(self) -> float:
        """x_i / X: what the mean over this worker's samples counts in that over all."""
        return self.samples / max(1, sum(self.shares))

    @property
    def averaged(self) -> bool:
        """Whether the policy averages the gradients of all workers in this step, so that all have the same weights."""
        those = [one for one in self.plan.exchanges if one.payload is Payload.GRADIENT and one.via is Via.GROUP]
        return len(self.members) == 1 or any(one.members == self.members for one in those)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a part is attached to.

    Attributes:
        rank: this worker.
        members: ranks of all workers.
        lines: the door to them. Open lines in :meth:`Part.attach`, where all workers come in the same order.
        model: as it was given to ``session.setup``, its parameters the same on all workers.
        optimizers: those given there.
        log: name, number → a line in the journal, as ``session.log`` writes it.
        tell: kind, text → an event in the journal, which ``watch`` and ``report`` list.
        now: the step of the batch that the newest forward pass is on, also where others have been handed out since;
            None before the first one.
        turn: what the newest forward pass counts in the gradient, of which ``turn().in_gradient`` is known in the
            backward pass: x_i / X, or what the script says with ``session.weighted``. None before the first one.
        own_time: what this worker does by itself in an iteration, on average of the newest ones: seconds, processor
            seconds in these, and processor seconds in exchanges; NaN where nobody knows.
        work_changed: says that an iteration is other work from now on, as where parts of a graph were handed over:
            ``own_time`` then knows nothing of earlier ones, and not of the first either, which may prepare the others.
        spread: ``with run.spread(10):`` around what is done every ten steps and serves all of them. Its time counts in
            each of these alike, so that shares follow it and nobody takes it for a change of speed.
    """

    rank: int
    members: tuple[int, ...]
    lines: Lines
    model: nn.Module
    optimizers: tuple[torch.optim.Optimizer, ...]
    log: Callable[[str, float], None]
    tell: Callable[[str, str], None] = lambda event, text: None
    now: Callable[[], Step | None] = lambda: None
    turn: Callable[[], BatchWeight | None] = lambda: None
    own_time: Callable[[], tuple[float, float, float]] = lambda: (math.nan, math.nan, math.nan)
    work_changed: Callable[[], None] = lambda: None
    spread: Callable[[int], AbstractContextManager[None]] = lambda steps: nullcontext()


class Part:
    """Base of all parts. Every method is empty; override what is wanted.

    Every worker must have the same parts, in the same order, and they must exchange the same: what one part waits for
    in a moment, the same part on the other members has to send in that moment of the same step.
    """

    @property
    def name(self) -> str:
        """For messages, the journal and the state: the same on all workers, and no other part's."""
        return type(self).__name__

    def attach(self, run: Run) -> None:
        """The model is there. Open lines here."""

    def before_step(self, step: Step) -> None:
        """A batch is about to be handed out."""

    def gradients_ready(self, step: Step, optimizer: torch.optim.Optimizer) -> None:
        """``optimizer`` is about to make its step. Where the policy averages gradients, ``.grad`` holds the mean over
        all workers, so a part that changes it must do so on all alike."""

    def after_step(self, step: Step) -> None:
        """The step is over: the next batch was asked for, or the epoch has ended. Not called where the loop was left
        in the midst of a step by an error."""

    def batch_read(self, ids: Any) -> None:
        """A batch has been read that is handed out after others, where ``session.loader(ids=…, ahead=…)`` reads ahead.

        Args:
            ids: what the loader's ``ids`` makes of it.
        """

    def evaluated(self) -> AbstractContextManager[None]:
        """Entered and left with ``session.evaluated()``, on all workers."""
        return nullcontext()

    def members_changed(self, members: tuple[int, ...]) -> None:
        """Workers have left or joined, in an elastic run; lines go on among those that are there.

        It may come in the midst of an exchange of the part's own, which then has the sum over those that are left."""

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs: numbers, texts, lists and dictionaries of such; and tensors, as values of the
        outermost dictionary. The state of any worker serves all, also another number of them."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of :meth:`state_dict`, after :meth:`attach` and between two steps.

        Raises:
            CheckpointError: it does not fit.
        """

    def close(self) -> None:
        """The session ends, also after an error. Exchange nothing here."""
