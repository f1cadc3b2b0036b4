"""The loop: the moments of each of the user's steps, and who is asked in them, in order.

| moment | who | what for |
|---|---|---|
| a batch is handed out | ``streams`` | in a new epoch, do all ranks read the same? |
| | ``agreement`` | what is owed from before, and the plan of this step |
| | ``turns`` | what the batch counts |
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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from uneven.core.actions import StepPlan
from uneven.data.drawn import DrawnSteps
from uneven.data.hands import Hands
from uneven.data.loader import BalancedLoader
from uneven.data.order import Portion
from uneven.run.attach import attach
from uneven.run.checks import check_alone, check_attached
from uneven.run.context import Context
from uneven.run.elastic.elastic import Elastic, Fixed
from uneven.run.factory import shared
from uneven.run.gradients.averaged import Averaged
from uneven.run.gradients.counted import PassCounts
from uneven.run.gradients.turns import Turns
from uneven.run.model.watch import ModelWatch, Unwatched
from uneven.run.parameters.plans import Plans
from uneven.run.parameters.together import Alike, Exchanging
from uneven.run.part import Step
from uneven.run.parts import Parts
from uneven.run.reports.reports import Reports
from uneven.run.reports.streams import Streams
from uneven.run.start.state import State


class StepLoop:
    """Told when a step begins and ends.

    Attributes:
        part: the batch in the user's hands.
        hands: those that were handed out and that no optimizer step has taken in.
        counting: what the newest of them counts.
        own_pace: what workers share that take samples at their own pace, where they do.
        agreement: what is exchanged beside gradients.
        attached, closed: whether a model is; whether the session is.
        watch: looks after it.
    """

    def __init__(self, context: Context, parts: Parts) -> None:
        self.context, self.parts = context, parts
        self._rank, self._members = context.rank, context.members
        self.own_pace = shared(context)
        self.turns = Turns(self._rank, self._members)
        self.reports, self.gradients = Reports(context, self.turns, self.own_pace), Averaged()
        self.agreement: Exchanging = Alike(Plans(context.policy, context.rank, context.members, context.sites))
        self._streams = Streams(context.connection.transport, together=self.own_pace is None)
        self.hands = Hands(self.turns.of)
        self.counting = PassCounts(self.hands)
        self.part: Portion | None = None
        self.epoch = -1
        self.attached = self.closed = False
        self.watch: ModelWatch | Unwatched = Unwatched()
        self._members_change: Elastic | Fixed = context.elastic or Fixed()
        self._planned: StepPlan | None = None
        self._detach: Callable[[], None] = _nothing

    def attach(self, model: nn.Module, optimizers: tuple[torch.optim.Optimizer, ...], **how: Any) -> None:
        """Take up the model; see :func:`uneven.run.attach.attach`, which takes ``how``."""
        made = attach(
            self.context, model, optimizers, reports=self.reports, gradients=self.gradients, hands=self.hands,
            counting=self.counting, own_pace=self.own_pace, parts=self.parts, **how,
        )  # fmt: skip
        self.agreement, self.watch, self._detach = made.agreement, made.watch, made.detach
        self.attached = True

    def begin(self, part: Portion, loader: BalancedLoader | DrawnSteps) -> None:
        """A batch is about to be handed to the user.

        Raises:
            ConfigError: several workers, and no model whose gradients are exchanged.
        """
        entered_s = time.perf_counter()
        if not self.attached:
            check_alone(self._members)
        books = self.reports.books
        if part.epoch != self.epoch:  # whatever happened between two epochs was not waiting for data
            books.meter.pause()
            self.watch.begin(part.epoch)
            self._streams.begin(loader.first_samples)
            self.epoch = part.epoch
        self.part = part
        self._members_change.begins(part)
        self.context.scribe.iteration = part.iteration
        plan = self.agreement.plan()
        if plan is not self._planned:
            self._check(plan)
        self.agreement.before(part, plan)
        self.turns.take(plan)
        if self.turns.all_average:
            self.reports.call(part.iteration)
        books.control_s += time.perf_counter() - entered_s
        books.meter.begin(part.iteration)
        if self.parts.wanted:  # inside of the step, so that waiting in their lines is told from computing
            at = self.agreement.clock, part.iteration, part.epoch
            self.parts.before(Step(*at, self._rank, self._members, part.shares, plan))

    def _check(self, plan: StepPlan) -> None:
        """See that what another plan than the last one asks for was attached."""
        if len(self._members) > 1:
            averaging, more = self.gradients.members, not isinstance(self.agreement, Alike)
            check_attached(self.context.policy, plan, self.agreement.clock, averaging=averaging, exchanging=more)
        self._planned = plan

    def end(self, leaving: bool | None = None) -> None:
        """The step is over: the user asks for the next batch, or leaves the loop.

        Args:
            leaving: whether it is left in its midst; None where a generator that is closed tells.
        """
        part, self.part, books = self.part, None, self.reports.books
        if part is None:
            return
        leaving = sys.exc_info()[0] is GeneratorExit if leaving is None else leaving
        if self.parts.wanted and not leaving:
            self.parts.after()
        met = self.agreement.after(part, leaving)
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
        if isinstance(self.agreement, Alike):
            self.agreement.plans.members_changed(members, generation)
        self.context.scribe.speaks = self.context.place == 0

    def over(self) -> None:
        """The epoch has no more batches; its last step has just ended."""
        self.watch.over()
        self.hands.rest()
        self.agreement.paused()
        self.reports.read()
        self.parts.note_traffic(self.context.scribe)

    @contextmanager
    def evaluated(self) -> Iterator[None]:
        """See :meth:`uneven.Session.evaluated`."""
        self.reports.books.meter.interrupted()
        with self.agreement.evaluated(), self.parts.evaluated():
            yield

    def current_shares(self) -> tuple[int, ...]:
        """The split of the batch in the user's hands, else the newest one."""
        return self.reports.newest_shares if self.part is None else self.part.shares

    def state(self, loader: BalancedLoader | DrawnSteps | None, several: tuple[Portion, ...]) -> State:
        """Where this run is.

        Args:
            several: batches in the hands of several threads.
        """
        hand = several if self.part is None else (self.part,)
        agreement, vectors = self.agreement.state_dict(hand, self.hands.unused())
        lacking = agreement.pop("lacking", None)
        place = {} if loader is None else loader.state_dict(lacking)
        return State(place, self.reports.state_dict(), agreement, vectors, *self.parts.state())

    def load(self, saved: State) -> None:
        """Inverse of :meth:`state`, but for the loader. What is damaged is refused before any change."""
        if saved.agreement:
            self.agreement.check(saved.agreement, saved.vectors)
        self.reports.load_state_dict(saved.control)
        if saved.agreement:
            self.agreement.load_state_dict(saved.agreement, saved.vectors)

    def close(self) -> None:
        """Let go of the model and of what was opened. A step in whose midst that happens does not end."""
        self.part, self.closed = None, True
        self._detach()
        self.reports.close()
        self.parts.close(self.context.scribe)


def _nothing() -> None:
    pass
