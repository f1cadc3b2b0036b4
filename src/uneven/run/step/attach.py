"""Attaches a model to a session, in a fixed order that is the same on every rank."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from uneven.errors import ConfigError
from uneven.policy.control.step_plans import StepPlans
from uneven.policy.core.actions import StepPlan
from uneven.policy.core.registry import describe
from uneven.policy.sync import Outlook, by_server, outlook
from uneven.run.context.context import Context
from uneven.run.gradients.base import Gradients
from uneven.run.gradients.first_losses import FirstLosses
from uneven.run.gradients.loss_weight import PassCounts
from uneven.run.lines.group_lines import take_from_first
from uneven.run.model.check import (
    check_model,
    check_optimizer,
    check_sharded,
    describe_model,
    frozen_digest,
    is_sharded,
    parts_called,
    refuse_complex,
    refuse_max_norm,
    travelling,
)
from uneven.run.model.hooks import ModelHook, Undo, keep_out_of_copies
from uneven.run.model.pass_tracking import ModelWatch, Unwatched, refuse_shared
from uneven.run.replicas.no_sync import NoSync
from uneven.run.reports.reporting import Reports
from uneven.run.samples.async_sampling.leased_samples import OwnPace
from uneven.run.samples.in_flight import InFlightBatches
from uneven.run.start.connect import compare
from uneven.run.start.heap import keep_freed_memory
from uneven.run.step.build import exchanging, follow, gradients_by, reports_behind
from uneven.run.step.callback import CallbackContext
from uneven.run.step.callbacks import Callbacks
from uneven.run.step.refusals import apart, check_alone, check_attached, check_momentum_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Attached:
    """A model in a session, and the objects made for it."""

    context: Context
    agreement: NoSync  # exchanges parameters, if the policy does
    gradients: Gradients  # exchanges gradients, if the policy does
    watch: ModelWatch | Unwatched  # checks the model
    detach: Callable[[], None]  # removes everything from the model

    def check(self, plan: StepPlan) -> None:
        """Raise ConfigError if the plan exchanges something that no earlier plan announced."""
        if len(self.context.members) > 1:
            averaging, more = self.gradients.averaging(plan), not self.agreement.gradients_only
            check_attached(self.context.policy, plan, self.agreement.clock, averaging=averaging, exchanging=more)

    def members_changed(self, members: tuple[int, ...], generation: int) -> None:
        self.agreement.members_changed(members, generation)


class NoModel:
    """Replaces :class:`Attached` before a session has a model; only a single process can train then."""

    gradients = Gradients()

    def __init__(self, context: Context) -> None:
        self.agreement = NoSync(StepPlans(context.policy, context.rank, context.members, context.sites))
        self.watch = Unwatched()
        self._members = context.members

    def check(self, plan: StepPlan) -> None:
        """Raise ConfigError if there are other workers, because each would train its own model."""
        check_alone(self._members)

    def members_changed(self, members: tuple[int, ...], generation: int) -> None:
        self._members = members
        self.agreement.members_changed(members, generation)

    def detach(self) -> None:
        """Do nothing."""


def attach(
    context: Context,
    model: nn.Module,
    optimizers: tuple[torch.optim.Optimizer, ...],
    *,
    owner: object,  # the session, which lives as long as the model
    undo: Undo,  # removes everything that is put on the user's objects
    reports: Reports,
    hands: InFlightBatches,
    counting: PassCounts,
    own_pace: OwnPace | None,
    parts: Callbacks,
    **ddp: Any,  # options of `DistributedDataParallel`
) -> Attached:
    """Compare the ranks' models, make the exchanges of the policy, and attach them to the model and its optimizers.

    Raises ConfigError if the model is not supported, and ConflictError if another rank has another model.
    """
    refuse_shared(model)
    known = {id(one) for one in model.parameters()}
    for optimizer in optimizers:  # a single process may train parameters outside of the model too
        check_optimizer(optimizer, lambda one: len(context.members) == 1 or id(one) in known)
    check_momentum_of(context.policy, optimizers, len(set(context.sites.values())))
    parts.adopt(model, context.config.threads)
    device, sharded = check_model(model), is_sharded(model)
    if not (sharded or context.participants.alone):
        refuse_complex(model)
    said = {"_device": device.type, **describe_model(model), "find_unused_parameters": ddp["find_unused_parameters"]}
    said["_frozen"] = "" if sharded or context.participants.alone else frozen_digest(model)
    # Before anything waits for another rank: different models would otherwise hang in the first exchange.
    found = compare(context.connection.transport, said, "session.setup")
    frozen = _common([one["_frozen"] for one in found], joins_later=context.participants.joins_later)
    context.connection.found([one["_device"] for one in found])
    heap = keep_freed_memory(hands) if context.config.keep_freed_memory and device.type == "cpu" else None
    reports.measure_on(device)
    context.participants.meet(model, frozen)
    if context.connection.roll is not None and not sharded:
        take_from_first(travelling(model, frozen))
    meter, who = reports.books.meter, (context.policy, context.members, context.sites)
    out = outlook(*who, changes=context.participants.changes)
    if sharded:
        check_sharded(model, len(context.members), _no_shards(context, out))
    agreement = exchanging(context, model, out, own_pace, meter)
    alike = agreement.gradients_only
    follower = None if alike else follow(context, model, hands, agreement, out)
    gradients = gradients_by(context, out, counting, meter, agreement, model, sharded=sharded)
    averages = gradients.members is not None
    if averages:
        refuse_max_norm(model)
        counting.exchanged()
    before_step = gradients.attach(model, owner, **ddp)
    if not alike:
        before_step.append(agreement.still)
    reports.words, reports.piggybacks = reports_behind(context, gradients, own_pace, alike=alike)
    in_step = own_pace is None or context.participants.alone
    lines = context.connection.lines(meter, "" if in_step else apart(context.policy))
    parts.attach(
        CallbackContext(rank=context.rank, members=context.members, lines=lines, model=model, optimizers=optimizers,
            log=context.scribe.scalar, tell=context.scribe.event, now=lambda: parts.now(hands.turn),
            turn=lambda: counting.turn, own_time=lambda: meter.own_time,
            work_changed=meter.work_changed, spread=meter.spread)
    )  # fmt: skip
    if alike and not context.participants.changes:  # a newcomer joins in the middle of an epoch
        gradients.compare(model, optimizers, context)
    if parts.sees_optimizers:
        before_step.append(partial(_ready, parts, hands))
    for optimizer in optimizers:
        undo.add(*(optimizer.register_step_pre_hook(ModelHook(call)).remove for call in before_step))
    hands.watch(model, *optimizers)
    begins = hands.forward
    if alike and averages and context.scribe.speaks:
        look = FirstLosses(hands, counting, partial(context.scribe.event, "loss", warn=True))
        begins = look.forward
        undo.add(look.close)
    following = ModelHook(begins)  # first, because later hooks ask which batch a pass is on
    for one in parts_called(model):
        undo.add(one.register_forward_pre_hook(following, with_kwargs=True, prepend=True).remove)
    undo.add(keep_out_of_copies(model))
    alone = len(context.members) == 1
    warn = partial(context.scribe.event, "gradients", warn=context.scribe.speaks)
    weighted = partial(_weighted_rightly, hands, counting, context)
    watched = partial(ModelWatch, warn=warn, weighted=weighted) if averages else ModelWatch
    watch = Unwatched() if alone or sharded else watched(model)
    if isinstance(watch, ModelWatch):
        undo.add(watch.close)

    def detach() -> None:
        gradients.detach()
        if follower is not None:
            follower.detach()
        if heap is not None:
            heap()

    return Attached(context=context, agreement=agreement, gradients=gradients, watch=watch, detach=detach)


def _no_shards(context: Context, out: Outlook) -> str:
    """Return why this run does not support sharded models; "" if it does."""
    if context.participants.changes:
        return "in an elastic run: a lost worker takes its part of the model with it; leave --elastic out"
    if by_server(context.policy, context.members, context.sites) or not out.gradients_of_all(context.members):
        return (
            f"under sync = {describe(context.policy)}: workers have replicas there that differ, and torch keeps one "
            f"model; use sync='bsp'"
        )
    return ""


def _weighted_rightly(hands: InFlightBatches, counting: PassCounts, context: Context, arguments: Any) -> bool:
    """Return whether a pass, perhaps on equal parts of other samples, gets the weight that is right for it."""
    equal = hands.newest is not None and hands.newest.weight == 1 / len(context.members)
    return equal or counting.counted or hands.holds(arguments)  # a script that counts weights its samples itself


def _common(digests: list[str], *, joins_later: bool) -> str:
    """Return the digest of the frozen parameters if it is the same everywhere, so that they need not be sent; "" if
    not. Raises ConfigError if this worker joins a run whose other workers have other ones, and send none."""
    *founders, own = digests if joins_later else (*digests, digests[0])
    if len(set(founders)) > 1:
        return ""
    if founders[0] not in ("", own):
        raise ConfigError(
            "session.setup: the parameters with requires_grad=False differ from those of the run. They are the same on "
            "all its workers, and so not sent to new ones: load the same pretrained weights before session.setup"
        )
    return own


def _ready(parts: Callbacks, hands: InFlightBatches, *step: object) -> None:
    parts.ready(hands.turn, *step)  # type: ignore[arg-type]
