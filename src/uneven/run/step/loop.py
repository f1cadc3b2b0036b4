"""The loop: the moments of each of the user's steps, and who is asked in them, in order.

| moment | who | what for |
|---|---|---|
| a batch is handed out | ``streams`` | in a new epoch, do all ranks read the same? |
| | ``agreement`` | what is owed from before, and the plan of this step |
| | ``turns`` | what the batch counts |
| | ``gradients`` | now and then, the parameters to compare |
| | ``reports`` | a call for reports, if this worker's speed has changed |
| | meter | the step begins |
| | the user's parts | ``before_step`` |
| the next one is asked for | the user's parts | ``after_step`` |
| | ``agreement`` | exchanges after the step |
| | meter | the step ends |
| | ``reports`` | read the meter, report, decide |
| | ``gradients`` | was there a NaN? |
| | ``streams`` | what the others read |

Everything here runs on every step, so everything but the parts and the exchanges is counted into ``control_s``.
"""

from __future__ import annotations

import sys
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
from uneven.run.gradients.averaged import Averaged
from uneven.run.gradients.batch_order import Turns
from uneven.run.gradients.loss_weight import PassCounts
from uneven.run.membership.elastic_run import Elastic, Fixed
from uneven.run.replicas.peers.replica_sync import NoSync
from uneven.run.reports.reporting import Reports
from uneven.run.reports.streams import Streams
from uneven.run.samples.in_flight import InFlightBatches
from uneven.run.samples.loader import BalancedLoader
from uneven.run.samples.user_batches import DrawnSteps
from uneven.run.step.attach import Attached, NoModel, attach
from uneven.run.step.build import shared
from uneven.run.step.context import Context
from uneven.run.step.part import Step
from uneven.run.step.parts import Parts


class StepLoop:
    """Asks everybody who takes part in a step, when it begins and when it ends.

    Attributes:
        part: the batch in the user's hands.
        hands: those that were handed out and that no optimizer step has taken in.
        counting: what the newest of them counts.
        own_pace: what workers share that take samples at their own pace, where they do.
        model: what hangs on the model, and what is exchanged beside its gradients.
        closed: whether the session is.
    """

    def __init__(self, context: Context, parts: Parts) -> None:
        self.context, self.parts = context, parts
        self._rank, self._members = context.rank, context.members
        self.own_pace = shared(context)
        self.turns = Turns(self._rank, self._members)
        self.reports, self.gradients = Reports(context, self.turns, self.own_pace), Averaged()
        self.model: Attached | NoModel = NoModel(context)
        self._streams = Streams(context.connection.transport, together=self.own_pace is None)
        self.hands = InFlightBatches(self.turns.of)
        self.hands.once = context.elastic is not None
        self.counting = PassCounts(self.hands)
        decides = weakref.WeakMethod(self._decides)  # hooks keep hands of sessions that were dropped
        self.hands.one_thread = lambda: (call := decides()) is not None and call()
        self.hands.fewer = partial(_warn_of_fewer, self.counting, context)
        self.part: Portion | None = None
        self.epoch = -1
        self.closed = False
        self._members_change: Elastic | Fixed = context.elastic or Fixed()
        self._planned: StepPlan | None = None

    def attach(self, model: nn.Module, optimizers: tuple[torch.optim.Optimizer, ...], **how: Any) -> None:
        """Take up the model; see :func:`uneven.run.step.attach.attach`, which takes ``how``."""
        self.model = attach(
            self.context, model, optimizers, reports=self.reports, gradients=self.gradients, hands=self.hands,
            counting=self.counting, own_pace=self.own_pace, parts=self.parts, **how,
        )  # fmt: skip
        self._planned = None

    def _decides(self) -> bool:
        """Whether anything is decided or exchanged among workers between two steps."""
        return len(self._members) > 1 and not (self.reports.settled() and isinstance(self.model.agreement, NoSync))

    def check_open(self, call: str) -> None:
        """Refuse a call on a session that has ended.

        Raises:
            ConfigError: naming the call.
        """
        if self.closed:
            raise ConfigError(f"{call}: the session is closed; make another one, with the model and the optimizer")

    def begin(self, part: Portion, loader: BalancedLoader | DrawnSteps) -> None:
        """A batch is about to be handed to the user.

        Raises:
            ConfigError: several workers, and no model, or a plan for which nothing was attached.
        """
        entered_s = time.perf_counter()
        books, agreement = self.reports.books, self.model.agreement
        if part.epoch != self.epoch:  # whatever happened between two epochs was not waiting for data
            books.meter.pause()
            self.model.watch.begin(part.epoch)
            self._streams.begin(loader.first_samples)
            self.epoch = part.epoch
        self.part = part
        self._members_change.begins(part)
        self.context.scribe.iteration = part.iteration
        plan = agreement.plan()
        if plan is not self._planned:
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
        if self.parts.wanted:  # inside of the step, so that waiting on their lines does not count as computing
            at = agreement.clock, part.iteration, part.epoch
            self.parts.before(Step(*at, self._rank, self._members, self._shares(part), plan))

    def _shares(self, part: Portion) -> tuple[int, ...]:
        """Samples of each member; 0 for one that has come since the part was drawn."""
        there = part.members in (None, self._members)
        return part.shares if there else tuple(map(part.batch, self._members))

    def end(self, leaving: bool | None = None) -> None:
        """The step is over: the user asks for the next batch, or leaves the loop.

        Args:
            leaving: whether the loop is left in mid-step; if None, a generator that is being closed shows it.
        """
        part, self.part, books = self.part, None, self.reports.books
        if part is None:
            return
        leaving = sys.exc_info()[0] is GeneratorExit if leaving is None else leaving
        if not leaving:
            self.hands.asked()
        if self.parts.wanted and not leaving:
            self.parts.after()
        met = self.model.agreement.after(part, leaving)
        books.meter.end()
        entered_s = time.perf_counter()
        self.reports.over(part, leaving=leaving, met=met, called=self.turns.all_average)
        self.gradients.poll(part.iteration)
        books.control_s += time.perf_counter() - entered_s
        if not leaving:
            self._streams.check(met)
            self._members_change.step_over()

    def members_changed(self, members: tuple[int, ...], generation: int) -> None:
        """Others take part, from the next step on."""
        self._members = self.gradients.members = members
        self.turns.members_changed(members)
        self.model.members_changed(members, generation)
        self.context.scribe.speaks = self.context.place == 0
        self.parts.members_changed(members)

    def over(self) -> None:
        """The epoch has no more batches; its last step has just ended."""
        self.model.watch.over()
        self.hands.rest()
        self.model.agreement.paused()
        self.reports.read()
        self.context.note_traffic()

    @contextmanager
    def evaluated(self) -> Iterator[None]:
        self.reports.books.meter.interrupted()
        with self.model.agreement.evaluated(), self.parts.evaluated():
            yield

    def current_shares(self) -> tuple[int, ...]:
        """The split of the batch in the user's hands, else the newest one."""
        return self.reports.newest_shares if self.part is None else self.part.shares

    def close(self) -> None:
        """Let go of the model and of what was opened. A step in whose midst that happens does not end."""
        self.part, self.closed = None, True
        self.model.detach()
        self.reports.close()
        self.parts.close()


def _warn_of_fewer(counting: PassCounts, context: Context, samples: int, turn: BatchWeight) -> None:
    """Warn once that gradients are weighted by more samples than the batch has."""
    if turn.exchanging and len(context.members) > 1 and not counting.counted and not context.scribe.counts["fewer"]:
        context.scribe.event(
            "fewer",
            f"the batch of iteration {turn.iteration} has {samples} samples, of {turn.samples} that were drawn, and "
            f"its gradient is weighted by these. If the collate function leaves samples out, put the forward pass and "
            f"the loss into `with session.weighted({samples}):`, the samples that it has, see docs/how-to/losses.md",
            warn=True,
        )
