"""The interface of callbacks: objects with methods for fixed moments of a step, which may exchange tensors.

A callback overrides the methods of the moments that it needs; the session calls only these::

    for x, y in loader              before_step(step)       the batch is about to be yielded
        loss = f(model(x), y)
        loss.backward()                                     gradients are exchanged during the backward pass
        optimizer.step()            gradients_ready(step)   they are in .grad, and the optimizer has not used them
        optimizer.zero_grad()
    next(loader)                    after_step(step)        the step has finished

In every moment the session calls its callbacks in the given order. A callback that raises ends the run, and the error
names the callback. A module of the model may bring a callback as its attribute ``uneven_callback``: ``session.setup``
adds it after the session's own callbacks.
"""

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from uneven.policy.core.actions import Payload, StepPlan, Via

if TYPE_CHECKING:  # a callback does not need torch at import
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
        iteration: number in the whole run, also after a resume.
        epoch: number of the epoch, from 0.
        rank: this worker.
        members: ranks of all workers; in an elastic run, the members at the start of the step.
        shares: samples of each of them in the global batch, in the order of ``members``.
        plan: exchanges of the synchronization policy in this step.
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
        """The number of this worker's samples that count, x_i; 0 for a padded batch."""
        return self.shares[self.members.index(self.rank)]

    @property
    def weight(self) -> float:
        """The weight of this worker's mean loss in the global mean, x_i / X."""
        return self.samples / max(1, sum(self.shares))

    @property
    def averaged(self) -> bool:
        """True if the policy averages the gradients of all workers in this step, so that all have the same
        parameters."""
        those = [one for one in self.plan.exchanges if one.payload is Payload.GRADIENT and one.via is Via.GROUP]
        return len(self.members) == 1 or any(one.members == self.members for one in those)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallbackContext:
    """The run that a callback is attached to.

    Attributes:
        rank: this worker.
        members: ranks of all workers.
        lines: connections to them. Open lines in :meth:`Callback.attach`, which all workers call in the same order.
        model: as given to ``session.setup``, with the same parameters on all workers.
        optimizers: those given there.
        log: name, number → a line in the journal, as from ``session.log``.
        tell: kind, text → an event in the journal, which ``watch`` and ``report`` list.
        now: returns the step of the batch of the newest forward pass, even if later batches were yielded since; None
            before the first pass.
        turn: returns the loss weight of the newest forward pass. ``turn().in_gradient`` is known in the backward pass:
            x_i / X, or the value of ``session.loss_mean``. None before the first pass.
        own_time: returns this worker's own time in a recent iteration, on average: seconds, processor seconds in these,
            and processor seconds in exchanges; NaN if unknown.
        work_changed: declares that iterations do different work from now on, for instance after parts of a graph have
            moved. ``own_time`` then ignores earlier iterations and the first new one, which may prepare the others.
        spread: ``with run.spread(10):`` around work that is done every ten steps and serves all of them. Its time
            counts in equal parts in each of these, so shares follow it and it does not look like a change of speed.
    """

    rank: int
    members: tuple[int, ...]
    lines: "Lines"
    model: "nn.Module"
    optimizers: "tuple[torch.optim.Optimizer, ...]"
    log: "Callable[[str, float], None]"
    tell: "Callable[[str, str], None]" = lambda event, text: None
    now: "Callable[[], Step | None]" = lambda: None
    turn: "Callable[[], BatchWeight | None]" = lambda: None
    own_time: "Callable[[], tuple[float, float, float]]" = lambda: (math.nan, math.nan, math.nan)
    work_changed: "Callable[[], None]" = lambda: None
    spread: "Callable[[int], AbstractContextManager[None]]" = lambda steps: nullcontext()


class Callback:
    """The base of all callbacks. Every method is empty; override those that you need.

    Every worker must have the same callbacks in the same order, with the same exchanges. If a callback waits for
    tensors in a moment, the same callback on the other members must send them in that moment of the same step.
    """

    @property
    def name(self) -> str:
        """The name for messages, the journal and the state: the same on all workers, and unique among callbacks."""
        return type(self).__name__

    def attach(self, run: CallbackContext) -> None:
        """Prepare for the model of ``run``. Open lines here."""

    def before_step(self, step: Step) -> None:
        """Called before the batch of ``step`` is yielded."""

    def gradients_ready(self, step: Step, optimizer: "torch.optim.Optimizer") -> None:
        """Called before ``optimizer`` makes its step. If the policy averages gradients, ``.grad`` holds the mean
        over all workers. So a callback must make the same changes to it on all of them."""

    def after_step(self, step: Step) -> None:
        """Called when the next batch is requested or the epoch has ended, but not if an error left the loop in the
        middle of a step."""

    def batch_read(self, ids: Any) -> None:
        """Called when ``session.loader(ids=…, ahead=…)`` has read a batch ahead; ``ids`` is the result of the
        loader's ``ids``."""

    def evaluation_model(self) -> AbstractContextManager[None]:
        """Return a context that ``session.evaluation_model()`` enters and leaves on all workers."""
        return nullcontext()

    def members_changed(self, members: tuple[int, ...]) -> None:
        """Called when workers have left or joined an elastic run; lines continue among the members.

        It may come during an exchange of the callback, which then returns the sum over the remaining members.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint: numbers, texts, lists and dictionaries of these; and tensors of any
        shape, as values of the outermost dictionary. The state of any worker serves all, also with another number of
        workers."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load ``state``, a result of :meth:`state_dict`, after :meth:`attach` and between two steps.

        Raises:
            CheckpointError: it does not fit.
        """

    def close(self) -> None:
        """Called at the end of the session, also after an error. Exchange nothing here."""
