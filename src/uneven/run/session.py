"""The session: wires balancer, policy, transport and journal into the user's own loop."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Self, TypedDict, TypeVar, Unpack, overload

import torch
from torch import nn

from uneven.errors import ConfigError
from uneven.policy.balance import Balancer
from uneven.policy.balance.profiled import Profile
from uneven.policy.core.run_config import RunConfig
from uneven.policy.samples.order import Portion
from uneven.policy.sync import SyncPolicy
from uneven.run.loops.over_all import OverAll
from uneven.run.membership.state_transfer import MembershipHooks
from uneven.run.model.check import least_samples
from uneven.run.model.hooks import Undo
from uneven.run.own_batches import OwnBatches
from uneven.run.reports.profiling import steps_on
from uneven.run.samples.loader import BalancedLoader
from uneven.run.samples.opening import LoaderOptions
from uneven.run.samples.user_batches import DrawnSteps
from uneven.run.start.connect import joined
from uneven.run.start.run_state import pack, unpack
from uneven.run.step.attach import Attached
from uneven.run.step.checkpoint import state_of, take_up
from uneven.run.step.context import leave
from uneven.run.step.join import join
from uneven.run.step.loop import StepLoop
from uneven.run.step.open_loader import make_loader, shards_of
from uneven.run.step.part import Part
from uneven.run.step.parts import Parts
from uneven.run.step.refusals import check_microbatch, check_profile, check_together
from uneven.run.threads.threaded_training import ThreadedTraining, Threads
from uneven.runtime.at_exit import ends_with_the_program
from uneven.runtime.rundir import mark_coming, mark_ready
from uneven.runtime.world import discover, report_failures

_SLOWED_AFTER_S = 1.0
"""A launcher that slows workers down looks a few times a second whether they are ready."""

Model = TypeVar("Model", bound=nn.Module)
Optimizer = TypeVar("Optimizer", bound=torch.optim.Optimizer)


class _HowGradientsTravel(TypedDict, total=False):
    find_unused_parameters: bool
    bucket_cap_mb: float | None
    gradient_as_bucket_view: bool


class Session(OwnBatches, OverAll, ThreadedTraining):
    """One worker's part in a run. The loop, the model, the loss and the optimizer stay the user's::

        session = uneven.Session()
        model, optimizer = session.setup(model, optimizer)
        loader = session.loader(dataset, batch_size=512)     # the global batch
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)              # mean over this worker's part, as always
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    The world comes from torchrun, ``uneven run`` or Ray Train; without a launcher the process is alone and
    the same script runs as plain PyTorch would. Every rank must make the same calls in the same order.

    Settings that are not given come from the command line of ``uneven run``, then from ``uneven.toml``.

    Args:
        balance: a balancer or its name: "lb-bsp", "even", "static:shares=2/1", "proportional", …
        sync: a synchronisation policy or its name.
        seed: with the epoch, decides the order of the samples.
        budget: share of an iteration that measuring and deciding may cost.
        timeout_s: how long an exchange may wait for somebody. A process group that exists already keeps its
            own time-out for the gradients.
        nonfinite: "warn" or "raise" on the rank where a NaN or infinity appears first.
        threads: how many threads train this worker's replica side by side, without a lock; see :meth:`train`.
        keep_freed_memory: whether the memory that a step frees is kept for the next one (on the CPU, with glibc).
        journal: directory for the run's journal; under ``uneven run`` its run directory, else none.
        parts: what else takes part in each step, in this order; see :class:`uneven.Part`.
        notice: says in how many seconds this worker's machine goes, and None while it stays; the worker leaves an
            elastic run then, see :mod:`uneven.integrations.spot`. Asked once a second in a thread of its own.

    Raises:
        ConfigError: a setting is wrong.
        ConflictError: the ranks were started with different settings or different code.
        PeerError: the other ranks could not be reached.
    """

    def __init__(
        self,
        *,
        balance: str | Balancer | None = None,
        sync: str | SyncPolicy | None = None,
        seed: int | None = None,
        budget: float | None = None,
        timeout_s: float | None = None,
        nonfinite: str | None = None,
        threads: int | None = None,
        keep_freed_memory: bool | None = None,
        journal: str | Path | None = None,
        parts: Sequence[Part] = (),
        notice: Callable[[], float | None] | None = None,
    ) -> None:
        report_failures()
        world = discover()
        self._awaited = world.awaited and world.run_directory is not None
        if self._awaited and world.run_directory is not None:
            mark_coming(world.run_directory, world.rank)
        self.world = joined(world)
        given = {"balance": balance, "sync": sync, "seed": seed, "budget": budget, "timeout_s": timeout_s,
                 "nonfinite": nonfinite, "threads": threads, "keep_freed_memory": keep_freed_memory}  # fmt: skip
        context, self._balancer = join(self.world, given, journal, parts)
        self.config: RunConfig = context.config
        self._scribe = context.scribe
        self._loop = StepLoop(context, Parts(parts))
        self._members = MembershipHooks(self._loop)
        if context.elastic is not None:
            context.elastic.bind(self._members)
        if notice is not None:
            self._members.heed(notice)
        self._threads = Threads(self.config.threads, self._loop, self._scribe)
        # Nothing here may lead back to the session, or it would never be collected.
        self._closing = weakref.finalize(self, leave, context)
        ends_with_the_program(self._closing)
        self._undo = Undo(self)  # what this session puts on the user's objects
        self._loader: BalancedLoader | DrawnSteps | None = None
        self._loaded: dict[str, Any] | None = None
        self._tried: tuple[weakref.ref[Any], ...] | None = None  # model and optimizers, which may lead back to here

    @property
    def shares(self) -> tuple[int, ...]:
        """Samples of each rank in the batch in hand, or in the newest split between epochs."""
        return self._loop.current_shares()

    @property
    def newest_shares(self) -> tuple[int, ...]:
        """The newest split that was decided; it may not be in force yet."""
        return self._loop.reports.newest_shares

    @property
    def exchanging(self) -> bool:
        """Whether a shadow exchanges beside the training now, and does not wait for others: steps take longer then."""
        return self._loop.model.agreement.exchanging

    @overload
    def setup(self, model: Model, /, **how: Unpack[_HowGradientsTravel]) -> Model: ...
    @overload
    def setup(
        self, model: Model, optimizer: Optimizer, /, **how: Unpack[_HowGradientsTravel]
    ) -> tuple[Model, Optimizer]: ...
    @overload
    def setup(self, model: Model, /, *stateful: Any, **how: Unpack[_HowGradientsTravel]) -> Any: ...
    def setup(
        self,
        model: nn.Module,
        /,
        *stateful: Any,
        find_unused_parameters: bool = False,
        bucket_cap_mb: float | None = None,
        gradient_as_bucket_view: bool = False,
    ) -> Any:
        """Let the gradients of ``model`` be exchanged. Everything given is returned, the same objects.

        Parameters are broadcast from rank 0. The model keeps its type and its state-dict keys; copies of it
        (averaged or saved models) exchange nothing. Give it what ``torch.compile`` returned, or compile later.

        An optimizer that decides by the loss that its closure returns (LBFGS) must be given the same loss on
        every rank: the sum over ranks of loss · share / global batch. It can otherwise take another number of
        passes on each rank, which would let the ranks wait for each other until the time-out.

        Args:
            stateful: the optimizers of this model, whose steps are checked, not changed; and schedulers or whatever
                else has ``state_dict`` and ``load_state_dict`` that a worker needs which joins in mid-run.
            find_unused_parameters: set it if a forward pass may leave out some parameters.
            bucket_cap_mb: size in MiB of the buckets in which gradients travel; torch's default if None.
            gradient_as_bucket_view: saves the memory of one copy of the gradients. Each ``.grad`` is then a part of a
                bucket, so the next backward pass overwrites it, also if the script has kept it.

        Raises:
            ConfigError: the model is none, is wrapped or in an open session already, has nothing to train, or lies on
                several devices; or this session is closed.
        """
        self._loop.check_open("session.setup")
        if isinstance(self._loop.model, Attached):
            raise ConfigError(
                "session.setup was called twice: one session carries one model. Give it one nn.Module of all models, "
                "such as nn.ModuleList([a, b]), with all optimizers, and call a and b as before"
            )
        if not isinstance(model, nn.Module):
            what = type(model).__name__
            raise ConfigError(f"session.setup({what}, …): give the model first, one nn.Module, and then its optimizers")
        self._threads.check(model)
        optimizers = tuple(one for one in stateful if isinstance(one, torch.optim.Optimizer))
        self._loop.attach(
            model, optimizers, owner=self, undo=self._undo,
            find_unused_parameters=find_unused_parameters, bucket_cap_mb=bucket_cap_mb,
            gradient_as_bucket_view=gradient_as_bucket_view,
        )  # fmt: skip
        self._members.attach(model, stateful)
        self._loop.reports.needs = least_samples(model)
        if self._loader is not None:
            self._loop.reports.settle(self._loader)
        self._tried = tuple(weakref.ref(one) for one in (model, *optimizers))
        return (model, *stateful) if stateful else model

    def loader(
        self,
        dataset: Any,
        batch_size: int,
        *,
        shuffle: bool = True,
        drop_last: bool = False,
        min_batch: int | None = None,
        max_batch: int | None = None,
        epochs: int | None = None,
        sharded: bool = False,
        microbatch: int | str | None = None,
        together: bool = False,
        **dataloader: Any,
    ) -> BalancedLoader:
        """The data loader of this worker.

        Args:
            dataset: map-style or a stream, the same on every rank.
            batch_size: the GLOBAL batch: samples of all workers together in one iteration.
            min_batch: least samples of this worker in an iteration; None for what the model needs: 2 if it has batch
                norm, else 1. :meth:`setup` may come before or after.
            max_batch: most samples of this worker, for instance what fits its memory; None for no limit.
            epochs: how many epochs are planned; only for the progress display.
            sharded: whether this rank's stream is a shard of its own, whose ``__len__`` says how many samples it has.
            microbatch: most samples in one pass of :meth:`passes`, a number or "auto": what fits, as :meth:`profile`
                measures it. Shares may be larger then.
            together: let :meth:`passes` finish each iteration together, for load that changes faster than forecasts.
            dataloader: anything else that torch's ``DataLoader`` takes: ``num_workers``, ``collate_fn``, ``sampler``,
                …; and with tables of :mod:`uneven.embedding`, ``ids``, a function of a batch, and ``ahead``, for how
                many batches their rows are asked for before.

        Raises:
            DataError: the data set has neither length nor stream interface, or a keyword does not fit.
            ConfigError: the limits cannot be met, the batch is smaller than the number of workers, or the session is
                closed.
            ConflictError: ranks gave different data sets or batch sizes.
        """
        self._loop.check_open("session.loader")
        if self._loader is not None:
            raise ConfigError("session.loader was called twice: one session balances one loader; use torch's own "
                              "DataLoader for evaluation, or make another Session")  # fmt: skip
        check_microbatch(microbatch)
        check_together(together, dataset, microbatch, dataloader)
        if sharded:
            dataloader["shards"] = shards_of(self._loop, dataset, batch_size, max_batch)
        asked = LoaderOptions.split(
            dataset=dataset, batch_size=batch_size, shuffle=shuffle, drop_last=drop_last,
            lower=1 if min_batch is None else min_batch, **dataloader,
        )  # fmt: skip
        loader = make_loader(self._loop, self._members, asked, self._begin)
        self._loop.reports.microbatch, self._together = microbatch, together
        self._loop.reports.start(
            loader, self._balancer, min_batch, max_batch, shuffle=shuffle, drop_last=drop_last, microbatch=microbatch,
            together=together,
        )  # fmt: skip
        if epochs is not None:
            self._scribe.plan(epochs * len(loader))
        self._loader = self._members.loader = loader
        self._restore(self._loaded)
        return loader

    def profile(
        self, step: Callable[[Any], object], *, batch_of: Callable[[int], Any] | None = None, within_s: float = 10.0
    ) -> dict[int, Profile]:
        """Before the loop: measure how long a batch takes on each worker, and how many samples its memory holds.

        ::

            def step(batch):
                x, y = batch
                F.cross_entropy(model(x), y).backward()

            session.profile(step)

        Every rank calls it after :meth:`setup` and :meth:`loader`, and all measure at the same time, as they will
        train. Growing batches are tried, each a few times. Nothing is exchanged; model, optimizers and random numbers
        are as before. The first split is then made from the measured speeds, nobody's share outgrows its memory, and
        balancers that use cost curves begin with these. A batch that does not fit is no error: it is the limit.

        A run that is resumed may call it again, before or after :meth:`load_state_dict`: limits are of the machine.

        Args:
            step: forward and backward on one batch, as in the loop; it may step the optimizers given to setup.
            batch_of: samples → a batch as the loader hands out; by default of the data set's first samples.
            within_s: time for all of it, seconds; a step that has begun is not cut off.

        Returns:
            What was measured, by rank, the same on every rank; nothing on a worker that joins a run under way.

        Raises:
            ConfigError: called before setup or loader, or after the loop has begun; the workers' memory together
                does not hold the global batch, or one's not a single sample.
            DataError: the data set is a stream, and there is no ``batch_of``.
            TrainingError: ``step`` failed on another rank.
        """
        check_profile(self._loader, self._tried, self._loop.epoch, within_s, self.config.timeout_s)
        if self._members.joins_later:
            return {}  # the others are training; it begins with the mean share
        assert self._loader is not None
        assert self._tried is not None
        self._threads.check_one("session.profile measures a step that has the machine to itself: leave it out")
        model, stepped = self._given(self._tried, "session.profile")
        if batch_of is None:
            self._loader.sample(1)
        make, reads = (self._loader.sample, self._loader.reads_along) if batch_of is None else (batch_of, False)
        if self._say_ready():
            time.sleep(_SLOWED_AFTER_S)
        with self._loop.model.watch.trying():
            return self._loop.reports.profile(
                steps_on(step, make, reads=reads), model, stepped, within_s, self._loop.gradients.aside()
            )

    def no_sync(self) -> AbstractContextManager[None]:
        """Inside, backward passes add to ``.grad`` without an exchange, for gradient accumulation.

        The last backward pass before ``optimizer.step()`` must run outside.
        """
        return self._loop.gradients.no_sync()

    def waiting(self) -> AbstractContextManager[None]:
        """Inside, this worker waits for others, in an exchange of the script's own::

            with session.waiting():
                torch.distributed.all_reduce(statistics)

        That time would else count as computing, so that a fast worker that waits for a slow one looks as slow.
        Layers of ``torch.nn.SyncBatchNorm`` need no such line.
        """
        return self._loop.context.connection.waiting(self._loop.reports.books.meter)

    def evaluated(self) -> AbstractContextManager[None]:
        """Inside, the model is the one that the policy names: evaluate and save that one::

            with session.evaluated():          # every worker
                accuracy = test(model)
                if session.rank == 0:
                    torch.save(model.state_dict(), "model.pt")

        Under ``bsp`` every replica is, and nothing happens. Where replicas are averaged it is their mean, which all
        workers work out together, and so wait for each other; where a policy keeps a centre it is that. Afterwards
        the model is this worker's own replica again, bit by bit. Every worker has to enter it, between two batches
        or outside of the loop; batch norm's running statistics belong to the model. Nothing is trained inside.

        Raises:
            PeerError: somebody did not come.
        """
        self._threads.check_outside("session.evaluated")
        return self._loop.evaluated()

    def log(self, **scalars: float) -> None:
        """Write numbers to the journal: ``session.log(loss=loss.item(), accuracy=…)``.

        Where every worker logs a number, the report draws the mean by what their batches count.

        Raises:
            NonFiniteError: one is NaN or infinite and ``nonfinite="raise"``.
            ConfigError: one is no number.
        """
        with self._threads.at_own_step():
            self._loop.context.log(scalars, self._counts())

    def state_dict(self) -> dict[str, Any]:
        """Where this run is, to be saved beside the model's state: plain data.

        Any rank's serves all; only what a rank's own predictor has learnt differs from rank to rank, and, where workers
        take samples at their own pace, outside of :meth:`evaluated`, which samples they know to be left. Between two
        exchanges of a policy that lets replicas differ, models and optimizers differ too: save them on every rank to
        go on exactly, or the model that :meth:`evaluated` shows, to go on from that.

        Samples count as used when an optimizer step has taken them in. Handed out again are batches that were only
        fetched ahead, those whose gradients still wait in ``.grad``, and, in :meth:`evaluated` of a policy with a
        centre at which all meet, those of the steps since the last exchange.

        Works with ``torch.save``, ``json`` and ``torch.distributed.checkpoint`` (a session is ``Stateful``).
        """
        if self._loader is None and self._loaded is not None:
            return self._loaded
        return pack(state_of(self._loop, self._loader, self._threads.in_hand()))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where ``state`` was taken, also with another number of workers; before or after ``loader``.

        Raises:
            CheckpointError: another schema, or it belongs to another data set or seed.
        """
        unpack(state)  # refuse a foreign state now, not when the loader comes
        if self._members.joins_later:
            return  # the others give it the state of the run as it is now
        self._loaded = state
        self._restore(state)

    def _restore(self, state: dict[str, Any] | None) -> None:
        """Take up what was loaded, once there is a loader."""
        if self._loader is None or state is None:
            return
        saved, self._loaded = unpack(state), None
        take_up(self._loop, self._loader, saved)

    def _say_ready(self) -> bool:
        """Let a launcher that waits for it slow this worker down from here on, not while it imports torch."""
        awaited, self._awaited = self._awaited, False
        if awaited and self.world.run_directory is not None:
            mark_ready(self.world.run_directory, self.worker)
        return awaited

    # Bound methods of the session, so that it lives (and stays connected) as long as its loader is used.
    def _begin(self, part: Portion) -> None:
        if self._threads.count > 1 or self._awaited:
            self._threads.check_one("a loop over a loader is one thread's: give it to session.train as a function")
            self._say_ready()
        assert self._loader is not None
        self._loop.begin(part, self._loader)

    def close(self) -> None:
        """End the run: the last records are written, groups and files let go of. Twice is fine.

        The model stays as it is and trains alone from here on. A session that is not closed is closed when
        neither its loader nor its model is used any more, or at the end of the program.
        """
        if self._loader is not None:
            self._loader.close()
        self._undo()
        try:
            if self._closing.alive:
                self._loop.close()
        finally:
            if self._closing.detach() is not None:
                self._loop.context.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
