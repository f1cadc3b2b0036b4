"""The loop: the moments of each step of the user, and the objects that are called in them, in order.

| moment | called | purpose |
|---|---|---|
| a batch is yielded | ``streams`` | in a new epoch: check that all ranks read the same |
| | ``agreement`` | finish earlier exchanges; the plan of this step |
| | ``turns`` | the batch's loss weight |
| | ``gradients`` | now and then: parameters to compare |
| | ``reports`` | a call for reports if this worker's speed has changed |
| | meter | start of the step |
| | the callbacks | ``before_step`` |
| the next one is requested | the callbacks | ``after_step`` |
| | ``agreement`` | exchanges after the step |
| | meter | end of the step |
| | ``reports`` | read the meter, report, decide |
| | ``gradients`` | check for NaN |
| | ``streams`` | compare with the other ranks |

All of this runs in every step, so everything except callbacks and exchanges counts as ``control_s``.
"""

import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from uneven.errors import ConfigError
from uneven.policy.core.actions import StepPlan
from uneven.policy.core.batch_weight import BatchWeight
from uneven.policy.samples.order import Portion
from uneven.run.context.context import Context
from uneven.run.gradients.batch_order import Turns
from uneven.run.gradients.loss_weight import PassCounts
from uneven.run.reports.reporting import Reports
from uneven.run.reports.streams import Streams
from uneven.run.samples.in_flight import InFlightBatches
from uneven.run.samples.loader import BalancedLoader
from uneven.run.samples.user_batches import DrawnSteps
from uneven.run.step.attach import Attached, NoModel, attach
from uneven.run.step.build import own_pace_of
from uneven.run.step.callback import Step
from uneven.run.step.callbacks import Callbacks


class StepLoop:
    """Calls all objects that take part in a step, at its start and at its end."""

    def __init__(self, context: Context, parts: Callbacks) -> None:
        self.context = context
        self.callbacks = parts
        self._rank = context.rank
        self._members = context.members
        self.own_pace = own_pace_of(context)  # shared state of workers that take samples asynchronously; otherwise None
        self.turns = Turns(self._rank, self._members)
        self.reports = Reports(context, self.turns, self.own_pace)
        self.model: Attached | NoModel = NoModel(context)  # the attached model and its exchanges
        self.gradients = self.model.gradients
        self._streams = Streams(context.connection.transport, together=self.own_pace is None)
        self.hands = InFlightBatches(self.turns.of)  # the in-flight batches
        self.hands.once = context.participants.changes  # a change of members invalidates earlier weights
        self.counting = PassCounts(self.hands)  # loss weight of the newest batch
        decides = weakref.WeakMethod(self._decides)  # torch's hooks keep `hands` alive after a session is dropped
        self.hands.one_thread = lambda: (call := decides()) is not None and call()
        self.hands.fewer = partial(_warn_of_fewer, self.counting, context)
        self.part: Portion | None = None  # the user's current batch
        self.loader: BalancedLoader | DrawnSteps | None = None  # once there is one
        self.epoch = -1
        self.closed = False  # whether the session is closed
        self._participants = context.participants
        self._planned: StepPlan | None = None

    def attach(self, model: nn.Module, optimizers: tuple[torch.optim.Optimizer, ...], **how: Any) -> None:
        """Attach the model; see :func:`uneven.run.step.attach.attach` for ``how``."""
        self.model = attach(
            self.context, model, optimizers, reports=self.reports, hands=self.hands, counting=self.counting,
            own_pace=self.own_pace, parts=self.callbacks, **how,
        )  # fmt: skip
        self.gradients = self.model.gradients
        self._planned = None

    def _decides(self) -> bool:
        """Return whether workers decide or exchange anything between two steps."""
        return len(self._members) > 1 and not (self.reports.settled() and self.model.agreement.gradients_only)

    def check_open(self, call: str) -> None:
        """Raise ConfigError, with the name of the call, if the session is closed."""
        if self.closed:
            raise ConfigError(f"{call}: the session is closed; make another one, with the model and the optimizer")

    def begin(self, part: Portion) -> None:
        """Start a step, before its batch is yielded. Raises ConfigError without a model, or if the plan needs other
        exchanges."""
        assert self.loader is not None
        entered_s = time.perf_counter()
        books, agreement = self.reports.books, self.model.agreement
        if part.epoch != self.epoch:  # the time between two epochs is not waiting for data
            books.meter.pause()
            self.model.watch.begin(part.epoch)
            self._streams.begin(self.loader.first_samples)
            self.epoch = part.epoch
        self.part = part
        self._participants.begins(part)
        self.context.scribe.iteration = part.iteration
        plan = agreement.plan()
        if plan is not self._planned:  # once per plan object, because the check runs in every step
            self.model.check(plan)
            self._planned = plan
        agreement.before(part, plan)
        self.turns.take(plan)
        if self.gradients.replicas is not None:
            self.gradients.replicas.begins(part.epoch, part.iteration)
        if self.turns.all_average:
            self.reports.call(part.iteration)
        books.control_s += time.perf_counter() - entered_s
        books.meter.begin(part.iteration)
        if self.callbacks.wanted:  # inside the metered step, so that waiting on their lines does not count as computing
            at = agreement.clock, part.iteration, part.epoch
            self.callbacks.before(Step(*at, self._rank, self._members, self._shares(part), plan))

    def _shares(self, part: Portion) -> tuple[int, ...]:
        there = part.members in (None, self._members)
        # 0 for a member that joined after the part was drawn
        return part.shares if there else tuple(map(part.batch, self._members))

    def end(self, leaving: bool) -> None:
        """End the step; ``leaving`` means that the loop is left in the middle of it."""
        part, self.part, books = self.part, None, self.reports.books
        if part is None:
            return
        if not leaving:
            self.hands.asked()
        if self.callbacks.wanted and not leaving:
            self.callbacks.after()
        met = self.model.agreement.after(part, leaving)
        books.meter.end()
        entered_s = time.perf_counter()
        self.reports.over(part, leaving=leaving, met=met, called=self.turns.all_average)
        self.gradients.poll(part.iteration)
        books.control_s += time.perf_counter() - entered_s
        if not leaving:
            self._streams.check(met)
            self._participants.step_over()

    def members_changed(self, members: tuple[int, ...], generation: int) -> None:
        self._members = members
        self.turns.members_changed(members)
        self.model.members_changed(members, generation)
        self.context.scribe.speaks = self._participants.place == 0
        self.callbacks.members_changed(members)

    def over(self) -> None:
        self.model.watch.over()
        self.hands.rest()
        self.model.agreement.paused()
        self.reports.read()
        self.context.note_traffic()

    @contextmanager
    def evaluation_model(self) -> Iterator[None]:
        self.reports.books.meter.interrupted()
        with self.model.agreement.evaluation_model(), self.callbacks.evaluation_model(), self.model.watch.trying():
            yield

    def current_shares(self) -> tuple[int, ...]:
        """Return the split of the user's current batch, otherwise the newest one."""
        return self.reports.next_shares if self.part is None else self.part.shares

    def close(self) -> None:
        """Release the model and everything that was opened. A step under way does not end."""
        self.part, self.closed = None, True
        self.model.detach()
        self.reports.close()
        self.callbacks.close()


def _warn_of_fewer(counting: PassCounts, context: Context, samples: int, turn: BatchWeight) -> None:
    """Warn once if a batch has fewer samples than its weight counts."""
    if turn.exchanging and len(context.members) > 1 and not counting.counted and not context.scribe.counts["fewer"]:
        context.scribe.event(
            "fewer",
            f"the batch of iteration {turn.iteration} has {samples} samples, of {turn.samples} that were drawn, and "
            f"its gradient is weighted by these. If the collate function leaves samples out, put the forward pass and "
            f"the loss into `with session.loss_mean({samples}):`, the samples that it has, see docs/how-to/losses.md",
            warn=True,
        )
