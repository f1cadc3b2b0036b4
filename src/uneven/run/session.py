"""The session: connects balancer, policy, transport and journal to the user's own training loop."""

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

_SLOWED_AFTER_S = 1.0  # A launcher that limits workers checks several times a second whether they are ready.

Model = TypeVar("Model", bound=nn.Module)
Optimizer = TypeVar("Optimizer", bound=torch.optim.Optimizer)


class _HowGradientsTravel(TypedDict, total=False):
    find_unused_parameters: bool
    bucket_cap_mb: float | None
    gradient_as_bucket_view: bool


class Session(OwnBatches, OverAll, ThreadedTraining):
    """Prepare one worker for a run. The loop, the model, the loss and the optimizer stay the user's::

        session = uneven.Session()
        model, optimizer = session.setup(model, optimizer)
        loader = session.loader(dataset, batch_size=512)     # the global batch
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)              # mean over this worker's part, as always
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    The ranks come from torchrun, ``uneven run`` or Ray Train. Without a launcher there is a single process, and the
    script runs as in plain PyTorch. Every rank must make the same calls in the same order. Settings that are not given
    come from the command line of ``uneven run``, then from ``uneven.toml``.

    Args:
        balance: a balancer or its name: "lb-bsp", "even", "static:shares=2/1", "proportional", …
        sync: a synchronization policy or its name.
        seed: determines the order of the samples, together with the epoch.
        budget: largest share of an iteration that measurements and decisions may cost.
        timeout_s: how long an exchange may wait for a peer. An existing process group keeps its own time-out for
            gradients.
        nonfinite: "warn" or "raise" on the rank where a NaN or infinity first appears.
        threads: number of threads that train this worker's replica concurrently, without a lock; see :meth:`train`.
        keep_freed_memory: whether memory freed by a step is kept for the next one (on the CPU, with glibc).
        journal: directory for the run's journal; the default is the run directory of ``uneven run``, or no journal.
        parts: additional parts of each step, in this order; see :class:`uneven.Part`.
        notice: returns the seconds until this machine is reclaimed, or None. A background thread calls it once a
            second; after a notice the worker leaves its elastic run, see :mod:`uneven.integrations.spot`.

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
        self._awaited = world.awaited and world.run_directory is not None  # a launcher waits to limit it
        if self._awaited and world.run_directory is not None:
            mark_coming(world.run_directory, world.rank)
        self.world = joined(world)
        given = {"balance": balance, "sync": sync, "seed": seed, "budget": budget, "timeout_s": timeout_s,
                 "nonfinite": nonfinite, "threads": threads, "keep_freed_memory": keep_freed_memory}  # fmt: skip
        context, self._balancer = join(self.world, given, journal, parts)
        self.config: RunConfig = context.config
        self._scribe = context.scribe
        self._loop = StepLoop(context, Parts(parts))
        self._members = MembershipHooks(self._loop)  # reacts to changed members
        if context.elastic is not None:
            context.elastic.bind(self._members)
        if notice is not None:
            self._members.heed(notice)
        self._threads = Threads(self.config.threads, self._loop, self._scribe)
        # A reference from `context` back to the session would keep it alive for ever.
        self._closing = weakref.finalize(self, leave, context)
        ends_with_the_program(self._closing)
        self._undo = Undo(self)  # removes what this session adds to the user's objects
        self._loader: BalancedLoader | DrawnSteps | None = None
        self._loaded: dict[str, Any] | None = None  # a state that waits for the loader
        self._tried: tuple[weakref.ref[Any], ...] | None = None  # model and optimizers, which may lead back to here

    @property
    def shares(self) -> tuple[int, ...]:
        """The samples of each rank in the current batch; between epochs, those of the newest split."""
        return self._loop.current_shares()

    @property
    def newest_shares(self) -> tuple[int, ...]:
        """The newest split that was decided; it may not be in force yet."""
        return self._loop.reports.newest_shares

    @property
    def exchanging(self) -> bool:
        """True while a background exchange runs; steps take longer then."""
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
        """Prepare ``model`` for gradient exchange and return the given objects unchanged.

        Parameters are broadcast from rank 0. The model keeps its type and its state-dict keys; copies of it (averaged
        or saved models) exchange nothing. Pass the result of ``torch.compile``, or compile later.

        An optimizer that decides by the loss of its closure (LBFGS) needs the same loss on every rank: the sum over
        ranks of loss · share / global batch. Otherwise the ranks may take different numbers of passes and wait for each
        other until the time-out.

        Args:
            stateful: the optimizers of this model, whose steps are checked but not changed; also schedulers and other
                objects with ``state_dict`` and ``load_state_dict`` that a worker needs when it joins the run later.
            find_unused_parameters: set it if a forward pass may leave out some parameters.
            bucket_cap_mb: size of the gradient buckets in MiB; None is torch's default.
            gradient_as_bucket_view: saves the memory of one copy of the gradients. Each ``.grad`` is then a view of a
                bucket, so the next backward pass overwrites it even if the script has kept it.

        Raises:
            ConfigError: the model is not a module, is already wrapped or in an open session, has nothing to train, or
                is on several devices; or this session is closed.
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
            model, optimizers, owner=self, undo=self._undo, find_unused_parameters=find_unused_parameters,
            bucket_cap_mb=bucket_cap_mb, gradient_as_bucket_view=gradient_as_bucket_view,
        )  # fmt: skip
        self._members.attach(model, stateful)
        self._loop.reports.needs = least_samples(model)
        if self._loader is not None:
            self._loop.reports.settle(self._loader)  # it was made without the model's needs
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
        """Return the data loader of this worker.

        Args:
            dataset: map-style or a stream, the same on every rank.
            batch_size: the GLOBAL batch: the samples of all workers together in one iteration.
            min_batch: least samples of this worker in an iteration. None is what the model needs: 2 with batch norm,
                else 1. :meth:`setup` may come before or after.
            max_batch: most samples of this worker, for instance as many as fit its memory; None for no limit.
            epochs: planned number of epochs; only for the progress display.
            sharded: whether this rank's stream is its own shard, whose ``__len__`` returns its number of samples.
            microbatch: most samples in one pass of :meth:`passes`: a number, or "auto" for the limit that
                :meth:`profile` measures. Shares may be larger then.
            together: let :meth:`passes` finish each iteration together, for load that changes faster than forecasts.
            dataloader: other arguments of torch's ``DataLoader``: ``num_workers``, ``collate_fn``, ``sampler``, …. With
                tables of :mod:`uneven.embedding` also ``ids``, a function of a batch, and ``ahead``, the number of
                batches whose rows are requested in advance.

        Raises:
            DataError: the data set has neither a length nor a stream interface, or a keyword does not fit.
            ConfigError: the limits cannot be met, the batch is smaller than the number of workers, or the session is
                closed.
            ConflictError: ranks gave different data sets or batch sizes.
        """
        self._loop.check_open("session.loader")
        if self._loader is not None:
            raise ConfigError(
                "session.loader was called twice: one session balances one loader; use torch's own "
                "DataLoader for evaluation, or make another Session"
            )
        check_microbatch(microbatch)
        check_together(together, dataset, microbatch, dataloader)
        if sharded:
            dataloader["shards"] = shards_of(self._loop, dataset, batch_size, max_batch)
        asked = LoaderOptions.split(
            dataset=dataset,
            batch_size=batch_size,
            shuffle=shuffle,
            drop_last=drop_last,
            lower=1 if min_batch is None else min_batch,
            **dataloader,
        )
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
        """Measure, before the loop, how long a batch takes on each worker and how many samples fit its memory.

        ::

            def step(batch):
                x, y = batch
                F.cross_entropy(model(x), y).backward()

            session.profile(step)

        Every rank calls it after :meth:`setup` and :meth:`loader`; all measure at the same time, as in training. It
        tries growing batches, each a few times, and exchanges nothing. The first batch that does not fit ends the
        search without an error. Model, optimizers and random states are restored. Afterwards the first split uses the
        measured speeds, no share exceeds its worker's memory, and balancers with cost curves start from these.

        A resumed run may call it again, before or after :meth:`load_state_dict`, because limits belong to the machine.

        Args:
            step: forward and backward on one batch, as in the loop; it may step the optimizers given to setup.
            batch_of: samples → a batch as the loader yields it; the default takes the first samples of the data set.
            within_s: time for the whole measurement, in seconds; it does not interrupt a step that has started.

        Returns:
            The measured profile of each rank, the same on every rank; empty on a worker that joins a run later.

        Raises:
            ConfigError: called before setup or loader, or after the loop has started; or the global batch does not fit
                the workers' memory together, or one sample does not fit one worker's.
            DataError: the data set is a stream, and there is no ``batch_of``.
            TrainingError: ``step`` failed on another rank.
        """
        check_profile(self._loader, self._tried, self._loop.epoch, within_s, self.config.timeout_s)
        if self._members.joins_later:
            return {}  # the others are training; it starts with the mean share
        assert self._loader is not None
        assert self._tried is not None
        self._threads.check_one("session.profile measures a step that has the machine to itself: leave it out")
        model, stepped = self._given(self._tried, "session.profile")
        if batch_of is None:
            self._loader.sample(1)
        make, reads = (self._loader.sample, self._loader.reads_along) if batch_of is None else (batch_of, False)
        if self._say_ready():
            time.sleep(_SLOWED_AFTER_S)  # the measurement needs the launcher's limits
        with self._loop.model.watch.trying():
            return self._loop.reports.profile(
                steps_on(step, make, reads=reads), model, stepped, within_s, self._loop.gradients.aside()
            )

    def no_sync(self) -> AbstractContextManager[None]:
        """Return a context in which backward passes add to ``.grad`` without an exchange, for gradient accumulation.
        The last backward pass before ``optimizer.step()`` must run outside of it."""
        return self._loop.gradients.no_sync()

    def waiting(self) -> AbstractContextManager[None]:
        """Return a context for the script's own exchanges, in which this worker waits for others::

            with session.waiting():
                torch.distributed.all_reduce(statistics)

        Without it this time counts as computing, so a fast worker that waits for a slow one looks slow.
        ``torch.nn.SyncBatchNorm`` does not need it.
        """
        return self._loop.context.connection.waiting(self._loop.reports.books.meter)

    def evaluated(self) -> AbstractContextManager[None]:
        """Return a context in which the model is the one that the policy defines; evaluate and save that one::

            with session.evaluated():          # every worker
                accuracy = test(model)
                if session.rank == 0:
                    torch.save(model.state_dict(), "model.pt")

        Under ``bsp`` nothing changes, because all replicas are equal. A policy that averages replicas gives their mean,
        for which all workers wait; a policy with a center gives the center. Afterwards the model is this worker's
        replica again, bit-identical. Every worker must enter it, between two batches or outside of the loop; do not
        train inside. Batch norm's running statistics belong to the model.

        Raises:
            PeerError: a worker did not enter it in time.
        """
        self._threads.check_outside("session.evaluated")
        return self._loop.evaluated()

    def log(self, **scalars: float) -> None:
        """Write numbers to the journal: ``session.log(loss=loss.item(), accuracy=…)``.

        If every worker logs a number, the report plots the mean weighted by their batches.

        Raises:
            NonFiniteError: a number is NaN or infinite and ``nonfinite="raise"``.
            ConfigError: a value is not a number.
        """
        with self._threads.at_own_step():
            self._loop.context.log(scalars, self._counts())

    def state_dict(self) -> dict[str, Any]:
        """Return the progress of this run as plain data, to be saved together with the model's state.

        The state of any rank serves all. Ranks differ only in what their predictors have learnt and, if workers take
        samples asynchronously, outside of :meth:`evaluated`, in the samples that they know to be left. If a policy lets
        replicas differ, save models and optimizers on every rank to resume exactly, or save the model of
        :meth:`evaluated`.

        A sample counts as used once an optimizer step includes it. After a restart the loader yields again: prefetched
        batches, batches whose gradients are still in ``.grad`` and, in :meth:`evaluated` of a policy whose workers meet
        at a center, those since the last exchange.

        Works with ``torch.save``, ``json`` and ``torch.distributed.checkpoint`` (a session is ``Stateful``).
        """
        if self._loader is None and self._loaded is not None:
            return self._loaded
        return pack(state_of(self._loop, self._loader, self._threads.in_hand()))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from ``state``, also with another number of workers; before or after ``loader``.

        Raises:
            CheckpointError: the state has another schema, or belongs to another data set or seed.
        """
        unpack(state)  # fail here on an invalid state, not when the loader is made
        if self._members.joins_later:
            return  # it receives the current state from a member instead
        self._loaded = state
        self._restore(state)

    def _restore(self, state: dict[str, Any] | None) -> None:
        # The state may be loaded before there is a loader: then it waits in `_loaded`.
        if self._loader is None or state is None:
            return
        saved, self._loaded = unpack(state), None
        take_up(self._loop, self._loader, saved)

    def _say_ready(self) -> bool:
        # Lets a waiting launcher limit this worker. Not earlier: with 0.1 core, importing torch takes a minute.
        awaited, self._awaited = self._awaited, False
        if awaited and self.world.run_directory is not None:
            mark_ready(self.world.run_directory, self.worker)
        return awaited

    # Bound methods of the session, so that it stays alive and connected as long as its loader is used.
    def _begin(self, part: Portion) -> None:
        if self._threads.count > 1 or self._awaited:
            self._threads.check_one("a loop over a loader is one thread's: give it to session.train as a function")
            self._say_ready()
        assert self._loader is not None
        self._loop.begin(part, self._loader)

    def close(self) -> None:
        """End the run: write the last records and release process groups and files. Idempotent.

        The model stays as it is and trains without exchanges from here on. A session that is not closed closes when its
        loader and its model are no longer used, or at the end of the program.
        """
        if self._loader is not None:
            self._loader.close()
        self._undo()
        try:
            if self._closing.alive:
                self._loop.close()
        finally:
            # Only one of this call and the finalizer closes the context.
            if self._closing.detach() is not None:
                self._loop.context.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
