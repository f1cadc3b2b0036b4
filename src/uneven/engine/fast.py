"""The fast loop: what happens around each of the user's iterations.

It marks time, hands weights to the carrier, writes a record and gives the slow loop its turn. Everything here
runs on every step, so everything here is counted into ``control_s``, but for marks in time.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from uneven.balance import Balancer, Even
from uneven.balance.bounds import profiled_limits
from uneven.balance.profile import Profile
from uneven.config import RunConfig
from uneven.control import Decider, Forecaster
from uneven.control.reports import Report
from uneven.core.actions import StepPlan
from uneven.core.turn import Turn
from uneven.core.views import Limits
from uneven.data.drawn import DrawnSteps
from uneven.data.hands import Hands
from uneven.data.loader import BalancedLoader
from uneven.data.order import Part
from uneven.data.order import Parts as Portions
from uneven.data.stream import is_stream
from uneven.engine.agree import Agreement
from uneven.engine.books import Books
from uneven.engine.connect import Connection, compare, gradient_group
from uneven.engine.handout import StoredHandOut
from uneven.engine.heap import keep_freed_memory
from uneven.engine.partake import Terms, agree, apart, by_copy, check_alone, check_attached, follow, hand_out_for, serve
from uneven.engine.plans import Plans
from uneven.engine.profiling import profile_record, profile_together
from uneven.engine.scribe import Scribe, tell_nonfinite
from uneven.engine.served import Served
from uneven.engine.slow import SlowLoop
from uneven.engine.state import State
from uneven.engine.streams import Streams
from uneven.engine.turns import Follower, Turns
from uneven.errors import ConfigError
from uneven.measure.load import nvml_uuid
from uneven.predict import predictors
from uneven.registry import describe
from uneven.run.lines import Lines
from uneven.run.part import Run, Step
from uneven.run.parts import Parts
from uneven.sync import SyncPolicy, outlook
from uneven.transport.base import Pending
from uneven.transport.check import check_model, describe_model
from uneven.transport.gradients import GradientCarrier
from uneven.transport.rider import Heard, Rider
from uneven.world import World

_NONFINITE_EVERY = 50
"""On an accelerator the flag for NaN and infinity is read every so many iterations, as reading it waits."""


@dataclass(frozen=True, slots=True)
class _Agreed:
    """What all ranks have agreed on when the loader was made."""

    balancer: Balancer
    limits: Limits
    global_batch: int
    lookahead: int


class FastLoop:
    """Told when an iteration begins and ends."""

    def __init__(
        self, connection: Connection, scribe: Scribe, config: RunConfig, policy: SyncPolicy, sites: dict[int, str],
        world: World, parts: Parts,
    ) -> None:  # fmt: skip
        self._parts = parts
        self._connection = connection
        self._scribe = scribe
        self._config = config
        self._policy = policy
        self._sites = sites
        self._rank = connection.transport.rank
        self._members = tuple(range(connection.transport.size))
        self._world = world
        self._plans = Plans(policy, self._rank, self._members, sites)
        self._copied = by_copy(policy, self._members, sites)
        self._hand_out = hand_out_for(policy, self._rank, self._members, self._copied, config.timeout_s)
        self.books = Books(self._rank, scribe, torch.device("cpu"))
        self._agreed: _Agreed | None = None
        self._slow: SlowLoop | None = None
        self._loaded: dict[str, Any] = {}
        self._part: Part | None = None
        self._epoch = -1
        self._steps = 0
        self._exchange_cost_s = 0.0
        self.carrier: GradientCarrier | None = None
        self._averaging: tuple[int, ...] | None = None  # those whose gradients are averaged with this worker's
        self._planned: StepPlan | None = None  # for the last step
        self._streams = Streams(connection.transport, together=self._hand_out is None)
        self._turns = Turns(self._rank, self._members)
        self.hands = Hands(self._turns.of)
        self._follower: Follower | None = None  # of passes, where parameters are exchanged and not gradients
        self._calls = False  # whether calls for reports have come along with gradients in this iteration
        self.agreement: Agreement | Served | None = None  # None where nothing is exchanged but everybody's gradients
        self._give_back: Callable[[], object] | None = None  # memory that is kept between steps
        self.attached = False
        self.lines: Lines | None = None

    def attach(self, model: nn.Module, find_unused_parameters: bool) -> GradientCarrier | None:
        """Measure where ``model`` is; the carrier for its gradients, or None where no gradients are exchanged.

        Raises:
            ConfigError: the model cannot be carried.
            ConflictError: another rank has another model.
        """
        device = check_model(model)
        said = {**describe_model(model), "find_unused_parameters": find_unused_parameters}
        compare(self._connection.transport, said, "session.setup")
        self.attached = True
        self._give_back = keep_freed_memory(self) if self._config.keep_freed_memory and device.type == "cpu" else None
        self.books = Books(self._rank, self._scribe, device)
        out = outlook(self._policy, self._members, self._sites)
        if self._copied and self._hand_out is not None:
            self.agreement = serve(self._terms(), model, self._hand_out, self._world)
        elif not out.gradients_of_all(self._members):
            self.agreement = agree(self._terms(), model, out, self._hand_out)
        if self.agreement is not None:
            self._follower = follow(self._terms(), model, self.hands, self.agreement, out)
        roll = None if self._copied else self._connection.roll
        if roll is not None and (group := gradient_group(out, self._rank, self._members)) is not None:
            self._averaging = next(one for one in out.gradient_groups if self._rank in one)
            self.hands.exchanged = True
            self.carrier = GradientCarrier(
                turn_now=lambda: self.hands.turn,
                observer=self.books.meter,
                roll=roll,
                on_nonfinite=lambda: self._nonfinite("gradient"),
                turn=Turn(iteration=0, epoch=0, samples=0, weight=1.0 / group.size()),
                group=group,
                report_length=len(Report._fields),
            )
        return self.carrier

    def attach_parts(
        self, model: nn.Module, optimizers: tuple[torch.optim.Optimizer, ...]
    ) -> Callable[..., None] | None:
        """Attach the parts that the session was given; what to call before each step of the optimizers, if they ask."""
        own_pace = self._hand_out is not None and len(self._members) > 1
        self.lines = self._connection.lines(self.books.meter, apart(self._policy) if own_pace else "")
        run = Run(rank=self._rank, members=self._members, lines=self.lines, model=model, optimizers=optimizers,
                  log=self._scribe.scalar)  # fmt: skip
        self._parts.attach(run)
        return (lambda *args: self._parts.ready(self.hands.turn, *args)) if self._parts.sees_optimizers else None

    def _terms(self) -> Terms:
        return Terms(
            policy=self._policy, rank=self._rank, members=self._members, sites=self._sites,
            connection=self._connection, config=self._config, scribe=self._scribe, observer=self.books.meter,
            # Not a method: the connection outlives the session, which a carrier of gradients would lead back to.
            tell_nonfinite=partial(partial, tell_nonfinite, self._scribe, self._config, self._rank),
        )  # fmt: skip

    def draw(self, batch_size: int | None, samples: int | None, balancer: Balancer) -> DrawnSteps:
        """Steps of a script that draws its batches itself; see :meth:`uneven.Session.step`.

        Raises:
            ConfigError: workers take samples at their own pace; or neither number is given, or both.
        """
        if self._hand_out is not None:
            raise ConfigError(
                f"session.step under sync = {describe(self._policy)}: workers take samples at their own pace there, "
                f"from a counter that only session.loader has; use a loader, or a policy whose workers step together"
            )
        if (batch_size is None) == (samples is None):
            raise ConfigError(f"session.step(batch_size={batch_size}, samples={samples}): give one of the two")
        if samples is None:
            assert batch_size is not None
            loader = DrawnSteps(batch_size, self._rank)
            self.start(loader, balancer, 1, None)
            return loader
        own = compare(self._connection.transport, {"_samples": samples}, "session.step")
        each = [int(one["_samples"]) for one in own]
        if min(each) < 0 or sum(each) == 0:
            raise ConfigError(f"session.step(samples=…): the workers say {each}; none may be below 0, nor all be 0")
        loader = DrawnSteps(sum(each), self._rank)
        self.start(loader, Even(), samples, samples)
        return loader

    def start(
        self,
        loader: BalancedLoader | DrawnSteps,
        balancer: Balancer,
        min_batch: int,
        max_batch: int | None,
        **same: Any,
    ) -> None:
        """Agree with the other ranks on limits and look-ahead, and make the slow loop.

        Args:
            same: what else must be the same everywhere.
        """
        upper = loader.batch_size if max_batch is None else max_batch
        said = compare(
            self._connection.transport,
            {
                "batch_size": loader.batch_size,
                "length of the data set": loader.samples,
                **same,
                "_lower": min_batch,
                "_upper": upper,
                "_lookahead": loader.lookahead,
            },
            "session.loader",
        )
        limits = Limits(
            lower=tuple(one["_lower"] for one in said),
            upper=tuple(min(one["_upper"], loader.batch_size) for one in said),
        )
        limits.check(loader.batch_size)
        self._turns.least = limits.lower[self._rank]
        if self._hand_out is not None:
            self._hand_out.begin(loader.paced, max(limits.lower))
        self._agreed = _Agreed(balancer, limits, loader.batch_size, max(one["_lookahead"] for one in said))
        self._slow = self._slow_loop(self._agreed, {})

    def _slow_loop(self, agreed: _Agreed, profiles: dict[int, Profile]) -> SlowLoop:
        decider = Decider(
            agreed.balancer,
            self._members,
            agreed.limits,
            global_batch=agreed.global_batch,
            lookahead=agreed.lookahead,
            budget=self._config.budget,
            profiles=profiles,
        )
        if profiles:
            self._scribe.split(decider.first())
        return SlowLoop(
            self._rank,
            self._give,
            decider,
            lambda: Forecaster(predictors.resolve(agreed.balancer.predictor)),
            on_split=self._scribe.split,
            on_complaint=self._scribe.complain,
            on_forecast=self._scribe.write,
        )

    def _give(self, row: Sequence[float]) -> Pending:
        """A report rides on the next gradients where there are some of everybody's in each iteration."""
        rider = self.carrier.rider if self.carrier is not None and self.agreement is None else None
        passenger = rider.carry(row) if rider is not None else None
        return self._connection.transport.gather(row) if passenger is None else passenger

    def profile(
        self, step: Callable[[int], object], model: nn.Module, optimizers: tuple[torch.optim.Optimizer, ...],
        place: str, within_s: float,
    ) -> dict[int, Profile]:  # fmt: skip
        """See :meth:`uneven.Session.profile`; it begins anew with what was measured, or where a loaded state was."""
        assert self._agreed is not None
        limits, total = self._agreed.limits, self._agreed.global_batch
        began_s = time.perf_counter()
        with self.carrier.aside() if self.carrier is not None else nullcontext():
            profiles = profile_together(
                step,
                model,
                optimizers,
                transport=self._connection.transport,
                place=f"{place}, {nvml_uuid(check_model(model))}",
                least=max(1, limits.lower[self._rank]),
                most=max(1, min(limits.upper[self._rank], total - sum(limits.lower) + limits.lower[self._rank])),
                within_s=within_s,
            )
        limits = profiled_limits(limits, profiles, total)
        took_s = time.perf_counter() - began_s
        self._scribe.write(profile_record(self._rank, profiles[self._rank], limits.upper[self._rank], took_s))
        self._agreed = replace(self._agreed, limits=limits)
        self._agreed.balancer.profiled(profiles)
        self._slow = self._slow_loop(self._agreed, profiles)
        if self._loaded:
            self._slow.load_state_dict(self._loaded)
        return profiles

    def hand_out(self, dataset: Any) -> StoredHandOut | None:
        """By which samples of a data set are taken; a stream's can be taken in equal parts where there is no copy."""
        return None if is_stream(dataset) and not self._copied else self._hand_out

    @property
    def begun(self) -> bool:
        """Whether a batch has been handed out."""
        return self._epoch >= 0

    def shares(self, iteration: int) -> tuple[int, ...]:
        """The split in force in ``iteration``."""
        assert self._slow is not None
        return self._slow.shares(iteration)

    def settled(self) -> bool:
        """Whether no split will be decided any more."""
        return self._slow is not None and not self._slow.adapts

    def current_shares(self) -> tuple[int, ...]:
        """The split of the batch in the user's hands, else the newest one."""
        return self._part.shares if self._part is not None else self.newest_shares()

    def newest_shares(self) -> tuple[int, ...]:
        """The newest split decided; empty before there is a loader."""
        return self._slow.newest if self._slow is not None else ()

    def begin(self, part: Part, loader: BalancedLoader | DrawnSteps) -> None:
        """A batch is about to be handed to the user.

        Raises:
            ConfigError: several workers, and no model whose gradients are exchanged.
        """
        entered_s = time.perf_counter()
        if not self.attached:
            check_alone(self._members)
        if part.epoch != self._epoch:  # whatever happened between two epochs was not waiting for data
            self.books.meter.pause()
            self._streams.begin(loader.first_samples)
        self._epoch = part.epoch
        self._part = part
        self._scribe.iteration = part.iteration
        plan = self._plan()
        if self.agreement is not None:
            self.agreement.before(part, plan)
        self._turns.take(plan)
        if self.carrier is not None:
            self._calls = self._turns.all_average
            if self._calls and self.carrier.rider is not None and self._slow is not None:
                self._call(self.carrier.rider, self._slow, part.iteration)
        self.books.control_s += time.perf_counter() - entered_s
        self.books.meter.begin(part.iteration)
        if self._parts.wanted:  # as training, so that waiting in their lines is told from computing
            at = self._steps, part.iteration, part.epoch
            self._parts.before(Step(*at, self._rank, self._members, part.shares, plan))

    def _call(self, rider: Rider, slow: SlowLoop, iteration: int) -> None:
        row = slow.cry(iteration, self.books.use, self._exchange_cost_s)
        if row is not None:
            rider.call(row)

    def _plan(self) -> StepPlan:
        plan = self._plans.at(self._steps) if self.agreement is None else self.agreement.plan()
        if plan is not self._planned and len(self._members) > 1:
            attached = self.agreement is not None
            check_attached(self._policy, plan, self._steps, averaging=self._averaging, agreement=attached)
        self._planned = plan
        return plan

    def end(self, leaving: bool | None = None) -> None:
        """The iteration is over: the user asks for the next batch, or leaves the loop.

        Args:
            leaving: whether it is left in its midst; None where a generator that is closed tells.
        """
        part, met = self._part, True
        leaving = sys.exc_info()[0] is GeneratorExit if leaving is None else leaving
        if self._parts.wanted and part is not None and not leaving:
            self._parts.after()
        if self.agreement is not None and part is not None:
            met = self.agreement.after(part, leaving)
        self.books.meter.end()
        entered_s = time.perf_counter()
        self._part = None
        if part is None or self._slow is None:
            return
        self._steps += 1
        heard = self._heard()
        self.books.end(part)
        adapts = self._slow.adapts
        due = adapts and self._slow.due(part.iteration, heard)
        if due or leaving or (adapts and (self._slow.watches or self._slow.wary)) or self.books.meter.ripe(adapts):
            self.read()
        if due and not leaving:  # the loop was left: by all ranks, or by an error on this one
            self._exchange(part.iteration, heard, met)
        if self.carrier is not None and part.iteration % _NONFINITE_EVERY == 0:
            self.carrier.poll_nonfinite()
        self.books.control_s += time.perf_counter() - entered_s
        if not leaving:
            self._streams.check(met)

    def over(self) -> None:
        """The epoch has no more batches; its last step has just ended."""
        self.hands.rest()
        if self.agreement is not None:
            self.agreement.paused()
        self.read()
        self._note_traffic()

    def _note_traffic(self) -> None:
        """Write down what has passed on the lines since this was last done."""
        if self.lines is not None:
            for record in self.lines.records(self._scribe.iteration, time.time()):
                self._scribe.write(record)

    def _heard(self) -> Heard | None:
        """See :meth:`SlowLoop.tick`. All must hear the same, so calls count only where all exchanged gradients."""
        rider = self.carrier.rider if self.carrier is not None and self._calls else None
        return rider.take() if rider is not None else None

    def _exchange(self, iteration: int, heard: Heard | None, met: bool) -> None:
        assert self._slow is not None
        entered_s = time.perf_counter()
        reported = self._slow.tick(iteration, self.books.use, self._exchange_cost_s, heard, met)
        spent_s = time.perf_counter() - entered_s
        self._exchange_cost_s = spent_s if reported else self._exchange_cost_s + spent_s

    def read(self) -> None:
        """Take in what has been measured and not been read."""
        if self._slow is not None:
            self.books.read(self._slow)

    def no_sync(self) -> AbstractContextManager[None]:
        """See :meth:`uneven.Session.no_sync`."""
        return self.carrier.no_sync() if self.carrier is not None else nullcontext()

    def waiting(self) -> AbstractContextManager[None]:
        """See :meth:`uneven.Session.waiting`."""
        return self._connection.waiting(self.books.meter)

    def log(self, scalars: dict[str, float]) -> None:
        """See :meth:`uneven.Session.log`."""
        for name, value in scalars.items():
            number = float(value)
            self._scribe.scalar(name, number)
            if not math.isfinite(number):
                self._nonfinite(name)

    def _nonfinite(self, what: str) -> None:
        tell_nonfinite(self._scribe, self._config, self._rank, what)

    @contextmanager
    def evaluated(self) -> Iterator[None]:
        """See :meth:`uneven.Session.evaluated`."""
        self.books.meter.interrupted()
        with self.agreement.evaluated() if self.agreement is not None else nullcontext(), self._parts.evaluated():
            yield

    def agreement_state(
        self, parts: Portions = (), unused: Portions = ()
    ) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        """What the policy and its merges keep: numbers and vectors. ``parts`` are in the hands of several threads."""
        hand = parts if self._part is None else (self._part,)
        return self.agreement.state_dict(hand, unused) if self.agreement is not None else ({}, {})

    def state_dict(self) -> dict[str, Any]:
        """State of the slow loop."""
        self.read()
        return self._slow.state_dict() if self._slow is not None else {}

    def load(self, saved: State) -> None:
        """Inverse of :meth:`state_dict` and :meth:`agreement_state`. What is damaged is refused before any change."""
        self.read()
        agreement = self.agreement if saved.agreement else None
        if agreement is not None:
            agreement.check(saved.agreement, saved.vectors)
        if self._slow is not None and saved.control:
            self._slow.load_state_dict(saved.control)
            self._loaded = saved.control
        if agreement is not None:
            agreement.load_state_dict(saved.agreement, saved.vectors)

    def close(self) -> None:
        """Let go of the model and of what was opened."""
        for one in (self.carrier, self._follower):
            if one is not None:
                one.detach()
        self.read()
        self._note_traffic()
        self._parts.close()
        if self.lines is not None:
            self.lines.close()
        if self._slow is not None:
            self._slow.close()
        self.books.close()
        if self._hand_out is not None:
            self._hand_out.stop()
        if self._give_back is not None:
            self._give_back()
