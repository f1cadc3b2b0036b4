"""One worker's measurements and reports, and the split that all workers decide from them."""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import nn

from uneven.errors import ConfigError
from uneven.policy.balance import Balancer, Even
from uneven.policy.balance.bounds import profiled_limits
from uneven.policy.balance.profiled import Profile, in_passes
from uneven.policy.control import Decider, Forecaster
from uneven.policy.core.membership import Generation
from uneven.policy.core.views import Limits
from uneven.policy.predict import predictors
from uneven.policy.samples.order import Portion
from uneven.run.context.context import Context
from uneven.run.gradients.batch_order import Turns
from uneven.run.lines.control_words import ControlWords
from uneven.run.lines.transport import Pending
from uneven.run.measure.machine_load import kind_of, nvml_uuid
from uneven.run.model.check import check_model
from uneven.run.reports.profiling import profile_record, profile_together
from uneven.run.reports.slow import SlowLoop
from uneven.run.reports.step_accounting import StepAccounting
from uneven.run.reports.streams import check_samples
from uneven.run.samples.async_sampling.leased_samples import OwnPace
from uneven.run.samples.loader import BalancedLoader
from uneven.run.samples.user_batches import DrawnSteps
from uneven.run.start.connect import compare


@dataclass(frozen=True, slots=True)
class _Agreed:
    """The facts that all ranks agree on when the loader is made."""

    balancer: Balancer
    limits: Limits
    global_batch: int
    lookahead: int
    adds_up: bool = False  # whether each worker takes a fixed number of samples, so that the global batch is their sum

    def among(self, limits: Limits) -> "_Agreed":
        """Return the same for other members; raises ConfigError if their limits do not allow the global batch."""
        global_batch = sum(limits.lower) if self.adds_up else self.global_batch
        limits.check(global_batch)
        return replace(self, limits=limits, global_batch=global_batch)


class Reports:
    """Measures steps and drives the slow loop, which exists once there is a loader."""

    def __init__(self, context: Context, turns: Turns, own_pace: OwnPace | None) -> None:
        self._context = context
        self._turns = turns
        self._own_pace = own_pace
        # accounting of this worker's iterations
        self.books = StepAccounting(context.rank, context.scribe, torch.device("cpu"))
        self.words: ControlWords | None = None  # sends a few numbers behind gradients that are in host memory
        self.piggybacks = False  # whether every step averages the gradients of all ranks, and so can carry reports
        self._agreed: _Agreed | None = None
        self.needs = 1  # samples that the model needs from each worker in a step
        self._slow: SlowLoop | None = None
        self._loaded: dict[str, Any] = {}
        self._cost_s = 0.0  # of the last exchange of reports
        self.microbatch: int | str | None = None
        self.together = False  # whether workers finish each iteration together
        self._fits: int | None = None  # samples in a pass, measured by a profile
        self._bounds: dict[int, tuple[int | None, int]] = {}  # least share of each worker (None: not given), greatest
        self._kinds: dict[int, str] = {}  # of each worker's machine
        self._profiles: dict[int, Profile] = {}
        self._kind = ""

    def measure_on(self, device: torch.device) -> None:
        self.books = StepAccounting(self._context.rank, self._context.scribe, device)
        self._kind = kind_of(device)

    def start(
        self, loader: BalancedLoader | DrawnSteps, min_batch: int | None, max_batch: int | None, **same: Any
    ) -> None:
        """Agree with the other ranks on limits and look-ahead; ``same`` must be equal on all ranks."""
        adds_up = isinstance(loader, DrawnSteps) and loader.adds_up
        upper = loader.batch_size if max_batch is None else max_batch
        several = not self._context.participants.alone
        some = loader.some_samples() if several and isinstance(loader, BalancedLoader) else None
        said = compare(
            self._context.connection.transport,
            {
                "batch_size": loader.batch_size,
                "length of the data set": loader.samples,
                "cost of its samples": loader.alike,
                **same,
                "_lower": min_batch,
                "_upper": upper if adds_up else min(upper, loader.batch_size),
                "_lookahead": loader.lookahead,
                "_kind": self._kind,
                "_samples": some,
            },
            "session.loader",
        )
        check_samples([one["_samples"] for one in said], "session.loader")
        self._bounds = {rank: (one["_lower"], one["_upper"]) for rank, one in enumerate(said)}
        self._kinds = {rank: one["_kind"] for rank, one in enumerate(said)}
        lookahead = max(one["_lookahead"] for one in said)
        if self._context.participants.changes:
            _refuse_unlike(said)
        if self._context.participants.joins_later:  # its only bounds until it is let in
            self._bounds = {self._context.rank: self._bounds[len(said) - 1]}
        balancer = Even() if adds_up else self._context.balancer  # limits of fixed shares leave nothing to balance
        self._agreed = _Agreed(balancer, Limits(lower=(), upper=()), loader.batch_size, lookahead, adds_up)
        if self._own_pace is not None:
            self._own_pace.counter.sampler = loader.paced
        self.settle(loader)

    def settle(self, loader: BalancedLoader | DrawnSteps) -> None:
        """Make the slow loop, with limits from the users' bounds and the model's needs, the same on all workers."""
        assert self._agreed is not None
        limits = self._limits(tuple(self._bounds))
        self._turns.least = max(limits.lower)  # equal on all workers, because they must divide a last part equally
        if isinstance(loader, BalancedLoader):
            loader.at_least(self._turns.least)
        if self._context.participants.joins_later:
            self._agreed = replace(self._agreed, limits=limits)
            return
        self._agreed = self._agreed.among(limits)
        self._slow = self._slow_loop(self._agreed, {})
        if self._loaded:
            self._slow.load_state_dict(self._loaded)

    def _limits(self, members: tuple[int, ...]) -> Limits:
        assert self._agreed is not None
        bounds, workers = [self._bounds[one] for one in members], self._context.participants.most
        needs, batch, free = self.needs, self._agreed.global_batch, [high for low, high in bounds if low is None]
        total = sum(low or 0 for low, _ in bounds) + needs * (workers - len(bounds) + len(free))
        if workers > 1 < needs and free and (total > batch or min(free) < needs):
            raise ConfigError(
                f"batch norm needs {needs} samples on each worker, so {workers} workers need a global batch of at "
                f"least {total} and a max_batch of at least {needs}, but these are {batch} and {min(free)}: raise "
                "them, or use fewer workers; for images session.loader(min_batch=1) is enough"
            )
        lower = tuple(min(needs, high) if low is None else low for low, high in bounds)
        return Limits(lower=lower, upper=tuple(high for _, high in bounds))

    def _slow_loop(self, agreed: _Agreed, profiles: dict[int, Profile]) -> SlowLoop:
        scribe = self._context.scribe
        decider = Decider(
            agreed.balancer,
            self._context.members,
            agreed.limits,
            global_batch=agreed.global_batch,
            lookahead=agreed.lookahead,
            budget=self._context.config.overhead_budget,
            profiles=profiles,
        )
        if profiles:
            scribe.split(decider.first())
        return SlowLoop(
            self._context.rank,
            self._give,
            decider,
            lambda: Forecaster(predictors.resolve(agreed.balancer.predictor)),
            on_split=scribe.split,
            on_complaint=scribe.complain,
            on_forecast=scribe.write,
        )

    def _give(self, row: Sequence[float]) -> Pending:
        pending = self.words.carry(row) if self.words is not None and self.piggybacks else None
        return self._context.connection.transport.gather(row) if pending is None else pending

    def profile(
        self,
        step: Callable[[int], object],
        model: nn.Module,
        optimizers: tuple[torch.optim.Optimizer, ...],
        within_s: float,
        aside: AbstractContextManager[None],  # context in which passes and steps affect no other worker
    ) -> dict[int, Profile]:
        """Profile the workers and start again with the results, or with a loaded state; see
        :meth:`uneven.Session.profile`."""
        assert self._agreed is not None
        rank, limits, total = self._context.rank, self._agreed.limits, self._agreed.global_batch
        began_s = time.perf_counter()
        with aside:
            profiles = profile_together(
                step,
                model,
                optimizers,
                transport=self._context.connection.transport,
                place=f"{self._context.world.host}, {nvml_uuid(check_model(model))}",
                least=max(1, limits.lower[rank]),
                most=max(1, min(limits.upper[rank], total - sum(limits.lower) + limits.lower[rank])),
                within_s=within_s,
            )
        if self.microbatch is not None:
            found = {one: _in_a_pass(self.microbatch, it) for one, it in profiles.items()}
            self._fits = found[rank] or total
            profiles = {
                one: it if (most := found[one]) is None else in_passes(it, most, total) for one, it in profiles.items()
            }
        self._profiles, limits = profiles, profiled_limits(limits, profiles, total)
        took_s = time.perf_counter() - began_s
        self._context.scribe.write(profile_record(rank, profiles[rank], limits.upper[rank], took_s))
        self._agreed = replace(self._agreed, limits=limits)
        self._agreed.balancer.profiled(profiles)
        self._slow = self._slow_loop(self._agreed, profiles)
        if self._loaded:
            self._slow.load_state_dict(self._loaded)
        return profiles

    def fitting(self) -> int | None:
        """Return the most samples in one pass, None for no limit; raises ConfigError if "auto" was not measured."""
        if isinstance(self.microbatch, str) and self._fits is None:
            raise ConfigError(
                "session.microbatches with microbatch='auto', but no profile was measured: call session.profile(step) "
                "before the loop, or give session.loader a number, microbatch=64"
            )
        return self.microbatch if self._fits is None else self._fits  # type: ignore[return-value] # else it is a number

    def introduction(self) -> dict[str, Any]:
        assert self._agreed is not None
        return {"lower": self._agreed.limits.lower[0], "upper": self._agreed.limits.upper[0], "kind": self._kind}

    def members_changed(self, generation: Generation) -> None:
        """Continue with other members; raises ConfigError if their limits do not allow the global batch."""
        for worker, said in generation.came.items():
            self._bounds[int(worker)] = (said["lower"], said["upper"])
            self._kinds[int(worker)] = said["kind"]
        if self._slow is None or self._agreed is None:
            return
        self._agreed = agreed = self._agreed.among(self._limits(generation.members))
        self._slow.members_changed(
            generation.border, generation.members, agreed.limits, agreed.global_batch, self._kinds
        )

    def for_newcomers(self) -> dict[str, Any]:
        """Return the state of the slow loop, and the bounds, kind and profile of each worker."""
        assert self._slow is not None
        return {
            "slow": self._slow.for_newcomers(),
            "bounds": self._bounds,
            "kinds": self._kinds,
            "profiles": {rank: asdict(one) for rank, one in self._profiles.items()},
        }

    def take_over(self, state: dict[str, Any]) -> None:
        assert self._agreed is not None
        self._bounds, self._kinds = state["bounds"], state["kinds"]
        self._profiles = {rank: Profile(**one) for rank, one in state["profiles"].items()}
        self._agreed = self._agreed.among(self._limits(self._context.members))
        self._slow = self._slow_loop(self._agreed, {})
        if self._profiles:  # not for the first split: they are profiles of the founders, not of the members now
            self._agreed.balancer.profiled(self._profiles)
        self._slow.take_over(state["slow"])

    def call(self, iteration: int) -> None:
        """Call for reports in the exchange of gradients that is about to start, if this worker's speed has changed."""
        if self.words is not None and self._slow is not None:
            row = self._slow.early_report(iteration, self.books.use, self._cost_s)
            if row is not None:
                self.words.call(row)

    def over(self, part: Portion, *, leaving: bool, met: bool, called: bool) -> None:
        """End a step.

        Args:
            leaving: whether the loop was left in it, by all ranks or by an error on this one.
            met: whether all workers have waited for each other in it.
            called: whether all have averaged gradients in it, so that all received the same calls.
        """
        slow = self._slow
        if slow is None:
            return
        heard = self.words.take() if called and self.words is not None else None
        self.books.end(part, self._context.participants.counted(part))
        adapts = slow.adapts and self._own_pace is None
        due = adapts and slow.due(part.iteration, heard)
        if due or leaving or (adapts and (slow.watches or slow.suspects_change)) or self.books.meter.ripe(adapts):
            self.read()
        if due and not leaving:
            entered_s = time.perf_counter()
            reported = slow.tick(part.iteration, self.books.use, self._cost_s, heard, met)
            spent_s = time.perf_counter() - entered_s
            self._cost_s = spent_s if reported else self._cost_s + spent_s

    def read(self) -> None:
        if self._slow is not None:
            self.books.read(self._slow)

    def shares(self, iteration: int) -> tuple[int, ...]:
        assert self._slow is not None
        return self._slow.shares(iteration)

    @property
    def next_shares(self) -> tuple[int, ...]:
        """The newest split decided; empty before there is a loader."""
        return self._slow.newest if self._slow is not None else ()

    def settled(self) -> bool:
        """Return whether no further split will be decided."""
        return self._slow is not None and not self._slow.adapts and not self._context.participants.changes

    def state_dict(self) -> dict[str, Any]:
        self.read()
        return self._slow.state_dict() if self._slow is not None else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the state of the slow loop; raises CheckpointError, before any change, if it is damaged."""
        self.read()
        if self._slow is not None and state:
            self._slow.load_state_dict(state)
            self._loaded = state

    def close(self) -> None:
        self.read()
        if self._slow is not None:
            self._slow.close()
        self.books.close()
        if self._own_pace is not None:
            self._own_pace.counter.stop()


def _in_a_pass(microbatch: int | str, profile: Profile) -> int | None:
    """Return the most samples of a worker in one pass; None for no limit."""
    given = None if isinstance(microbatch, str) else microbatch
    return min((one for one in (given, profile.most) if one is not None), default=None)


def _refuse_unlike(said: list[dict[str, Any]]) -> None:
    """Raise ConfigError if workers draw different numbers of batches ahead, because members may change."""
    ahead = [one["_lookahead"] for one in said]
    if len(set(ahead)) > 1:
        raise ConfigError(
            f"the workers' loaders read {ahead} batches ahead: in an elastic run give all the same num_workers and "
            "prefetch_factor"
        )
