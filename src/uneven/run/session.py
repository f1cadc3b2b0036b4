"""The session: connects balancer, policy, transport and journal to the user's own training loop."""

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Literal, Self, TextIO, TypedDict, TypeVar, TypeVarTuple, Unpack, overload

import torch
from torch import Tensor, nn

from uneven.policy.balance import Balancer
from uneven.policy.balance.profiled import Profile
from uneven.policy.core.run_config import RunConfig
from uneven.policy.samples.order import Portion
from uneven.policy.sync import SyncPolicy
from uneven.run.context.context import leave
from uneven.run.join import join
from uneven.run.loops.evaluate import Found
from uneven.run.loops.over_all import OverAll
from uneven.run.loops.prepare import Preparation
from uneven.run.loops.user_steps import UserSteps
from uneven.run.model.hooks import Undo
from uneven.run.samples.loader import BalancedLoader
from uneven.run.samples.opening import DataLoaderOptions, check_keywords
from uneven.run.start.connect import device_of, find_world
from uneven.run.step.callback import Callback
from uneven.run.step.callbacks import Callbacks
from uneven.run.step.checkpoint import Checkpoint
from uneven.run.step.loop import StepLoop
from uneven.run.step.membership_hooks import MembershipHooks
from uneven.run.threads.hogwild import Threads
from uneven.runtime.at_exit import ends_with_the_program
from uneven.runtime.states import save_whole

Model = TypeVar("Model", bound=nn.Module)
First = TypeVar("First")
More = TypeVarTuple("More")


class _HowGradientsTravel(TypedDict, total=False):
    find_unused_parameters: bool
    bucket_cap_mb: float | None
    gradient_as_bucket_view: bool


class Session:
    """One worker's part in a run. The loop, the model, the loss and the optimizer stay the user's::

        session = uneven.Session()
        model, optimizer = session.setup(model, optimizer)
        loader = session.loader(dataset, global_batch_size=512)     # the global batch
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
        overhead_budget: largest share of an iteration that measurements and decisions may cost.
        timeout_s: how long an exchange may wait for a peer. An existing process group keeps its own time-out for
            gradients.
        nonfinite: "warn" or "raise" on the rank where a NaN or infinity first appears.
        threads: number of threads that train this worker's replica concurrently, without a lock; see :meth:`train`.
        keep_freed_memory: whether memory freed by a step is kept for the next one (on the CPU, with glibc).
        run_dir: directory for the run's journal; the default is the run directory of ``uneven run``, or no journal.
        callbacks: objects with methods that each step calls, in this order; see :class:`uneven.Callback`.
        preemption_notice: returns the seconds until this machine is reclaimed, or None. A background thread calls it
            once a second; after a notice the worker leaves its elastic run, see :mod:`uneven.integrations.spot`.

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
        overhead_budget: float | None = None,
        timeout_s: float | None = None,
        nonfinite: str | None = None,
        threads: int | None = None,
        keep_freed_memory: bool | None = None,
        run_dir: str | Path | None = None,
        callbacks: Sequence[Callback] = (),
        preemption_notice: Callable[[], float | None] | None = None,
    ) -> None:
        self.world = find_world()
        given = {
            "balance": balance,
            "sync": sync,
            "seed": seed,
            "overhead_budget": overhead_budget,
            "timeout_s": timeout_s,
            "nonfinite": nonfinite,
            "threads": threads,
            "keep_freed_memory": keep_freed_memory,
        }
        context = join(self.world, given, run_dir, callbacks)
        self.config: RunConfig = context.config
        # No object made here refers to the session. The loader and the model's hooks do, and so keep it alive.
        self._loop = StepLoop(context, Callbacks(callbacks))
        context.participants.bind(MembershipHooks(self._loop))
        if preemption_notice is not None:
            context.participants.heed(preemption_notice)
        self._threads = Threads(self._loop)
        # A reference from `context` back to the session would keep it alive for ever.
        self._closing = weakref.finalize(self, leave, context)
        ends_with_the_program(self._closing)
        self._undo = Undo(self)  # removes what this session adds to the user's objects
        self._checkpoint = Checkpoint(self._loop)
        self._preparation = Preparation(self._loop, self._threads, self._checkpoint)
        self._steps = UserSteps(self._loop, self._checkpoint)
        self._over_all = OverAll(self._loop)

    @property
    def rank(self) -> int:
        """This worker's place, 0 … ``world_size`` − 1; in an elastic run it changes with the members, and 0 always
        exists."""
        return self._loop.context.participants.place

    @property
    def worker(self) -> int:
        """This worker's number, which never changes: in the journal and in elastic runs."""
        return self.world.rank

    @property
    def world_size(self) -> int:
        """The current number of workers."""
        return len(self._loop.context.members)

    @property
    def is_main(self) -> bool:
        """True on rank 0 only, which does the work of one worker for all: ``if session.is_main: download()``.

        If that worker leaves an elastic run, another one becomes rank 0.
        """
        return self.rank == 0

    def barrier(self) -> None:
        """Wait until every worker has called it, also before :meth:`setup`; its time is not counted as computing::

            if session.is_main:
                download()
            session.barrier()

        In an elastic run, a worker that has not joined yet does not wait.

        Raises:
            PeerError: a worker did not come in time.
            ConfigError: in an elastic run, the policy's workers do not meet (``asp``).
        """
        self._threads.check_outside("session.barrier")
        self._over_all.barrier()

    def print(
        self, *values: object, sep: str = " ", end: str = "\n", file: TextIO | None = None, flush: bool = False
    ) -> None:
        """Print ``values`` on the main worker only; ``sep``, ``end``, ``file`` and ``flush`` are those of ``print``."""
        if self.is_main:
            print(*values, sep=sep, end=end, file=file, flush=flush)

    def save(self, state: Any, path: str | Path) -> None:
        """Save ``state`` with ``torch.save`` on the main worker only; a crash leaves the old file or the new one::

            with session.evaluation_model():
                session.save({"model": model.state_dict(), "session": session.state_dict()}, "checkpoint.pt")

        Other workers do not wait. Call :meth:`barrier` before they read the file.

        Args:
            state: an object that ``torch.save`` takes; tensors may be on any device.
            path: the file; its folder exists.

        Raises:
            CheckpointError: the file cannot be written.
        """
        if self.is_main:
            save_whole(Path(path), state)

    @property
    def device(self) -> torch.device:
        """The device of this worker: its accelerator (CUDA, ROCm, XPU or MPS), or the CPU."""
        return device_of(self.world)

    def leave(self) -> None:
        """Leave an elastic run, for instance because the machine will be reclaimed.

        The worker finishes the step under way, and the next ``next(loader)`` ends its program. SIGTERM does the same.

        Raises:
            ConfigError: the run is not elastic.
        """
        self._loop.context.participants.leave()

    @overload
    def setup(self, model: Model, /, **how: Unpack[_HowGradientsTravel]) -> Model: ...
    @overload
    def setup(
        self, model: Model, first: First, /, *more: *More, **how: Unpack[_HowGradientsTravel]
    ) -> tuple[Model, First, *More]: ...
    def setup(  # type: ignore[misc] # mypy does not match *stateful with TypeVarTuples
        self,
        model: nn.Module,
        /,
        *stateful: Any,
        find_unused_parameters: bool = False,
        bucket_cap_mb: float | None = None,
        gradient_as_bucket_view: bool = False,
    ) -> Any:
        """Prepare ``model`` for gradient exchange and return the given objects unchanged.

        Parameters are broadcast from rank 0, except frozen ones that are the same on all ranks. The model keeps its
        type and its state-dict keys; copies of it (averaged or saved models) exchange nothing. Pass the result of
        ``torch.compile``, or compile later.

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
        return self._preparation.setup(
            model, stateful, owner=self, undo=self._undo, find_unused_parameters=find_unused_parameters,
            bucket_cap_mb=bucket_cap_mb, gradient_as_bucket_view=gradient_as_bucket_view,
        )  # fmt: skip

    def loader(
        self,
        dataset: Any,
        global_batch_size: int | None = None,
        *,
        shuffle: bool | None = None,
        drop_last: bool | None = None,
        sampler: Iterable[int] | None = None,
        batch_sampler: Iterable[list[int]] | None = None,
        min_batch: int | None = None,
        max_batch: int | None = None,
        cost: Sequence[float] | Callable[[int], float] | None = None,
        padded: bool = False,
        microbatch: int | Literal["auto"] | None = None,
        together: bool = False,
        sharded: bool = False,
        stream_sharded: bool = False,
        ids: Callable[[Any], object] | None = None,
        ahead: int = 0,
        epochs: int | None = None,
        **dataloader: Unpack[DataLoaderOptions],
    ) -> BalancedLoader:
        """Return the data loader of this worker.

        ::

            loader = session.loader(dataset, global_batch_size=512, num_workers=2)
            loader = session.loader(DataLoader(dataset, 128, shuffle=True))      # 128 samples × the number of workers

        Args:
            dataset: map-style or a stream, the same on every rank; or a ``DataLoader`` of torch, whose data set and
                options are taken over.
            global_batch_size: the GLOBAL batch: the samples of all workers together in one iteration. None is for a
                ``DataLoader``: its batch size times the number of workers.
            shuffle: whether each epoch has a new order. None means True, or as in the ``DataLoader``.
            drop_last: whether an incomplete last batch is left out. None means False, or as in the ``DataLoader``.
            sampler: draws the order of an epoch, the same on all ranks.
            batch_sampler: draws lists of at most ``global_batch_size`` indices; each is a global batch.
            min_batch: least samples of this worker in an iteration. None means the model's minimum: 2 with batch norm,
                else 1. :meth:`setup` may come before or after.
            max_batch: most samples of this worker, for instance as many as fit its memory; None for no limit.
            cost: of each sample: an array, or a function of its index. Batches are divided by cost, not by number.
            padded: whether a part costs its number of samples times its greatest cost, instead of their sum.
            microbatch: most samples in one pass of :meth:`microbatches`: a number, or "auto" for the limit that
                :meth:`profile` measures. Shares may be larger then.
            together: let :meth:`microbatches` finish each iteration together, for load that changes faster than
                forecasts.
            sharded: whether this rank's stream is its own shard, whose ``__len__`` returns its number of samples.
            stream_sharded: whether a stream divides itself among its ``num_workers`` reader processes.
            ids: of a batch, the rows of :mod:`uneven.embedding` that it needs.
            ahead: number of batches whose rows are requested in advance.
            epochs: planned number of epochs; only for the progress display.
            dataloader: for torch's ``DataLoader``: ``num_workers``, ``collate_fn``, ``pin_memory``,
                ``persistent_workers``, ``prefetch_factor``, ``timeout``, ``worker_init_fn``,
                ``multiprocessing_context``, ``generator``.

        Raises:
            DataError: the data set has no length and no stream interface, the ``DataLoader`` cannot be taken
                over, or options exclude each other.
            UnknownNameError: a keyword does not exist; the message offers the nearest one.
            ConfigError: the limits cannot be met, the batch is smaller than the number of workers, or the session is
                closed.
            ConflictError: ranks gave different data sets or batch sizes.
        """
        return self._preparation.loader(
            self._begin, dataset=dataset, batch_size=global_batch_size, shuffle=shuffle, drop_last=drop_last,
            sampler=sampler, batch_sampler=batch_sampler, min_batch=min_batch, max_batch=max_batch, cost=cost,
            padded=padded, microbatch=microbatch, together=together, sharded=sharded, stream_sharded=stream_sharded,
            ids=ids, ahead=ahead, epochs=epochs,
            dataloader=check_keywords(Session.loader, dataloader),
        )  # fmt: skip

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
        return self._preparation.profile(step, batch_of, within_s)

    @contextmanager
    def step(self, global_batch_size: int | None = None, *, samples: int | None = None) -> Iterator[int]:
        """Make a block a step, for loops that draw their batches themselves; instead of :meth:`loader`::

            for _ in range(steps):
                with session.step(global_batch_size=512) as n:      # n: this worker's part of 512
                    x, y = get_batch(n)
                    loss = F.cross_entropy(model(x), y)      # mean over these n
                    loss.backward()
                    optimizer.step()
                    optimizer.zero_grad()

        Every worker takes the same number of steps. :meth:`local_batch_size` returns n before the block,
        :meth:`steps_taken` the number of the first step.

        Args:
            global_batch_size: the global batch, the same in every step: the samples of all workers together.
            samples: instead, this worker's samples in every step, for full batches and fixed graph partitions. They
                weight the gradients; nothing is balanced.

        Raises:
            ConfigError: not exactly one of the two is given, or the first step had the other; there is a loader; the
                policy takes samples asynchronously (``asp``, ``easgd``, …) and needs a loader; or the session is
                closed.
            TrainingError: ``samples`` differ from the first step, or another step is under way.
        """
        with self._steps.step(global_batch_size, samples, self._begin) as own:
            yield own

    def local_batch_size(self, global_batch_size: int) -> int:
        """Return this worker's samples in the next :meth:`step`, of a global batch of ``global_batch_size``."""
        return self._steps.local_batch_size(global_batch_size)

    def steps_taken(self, global_batch_size: int | None = None, *, samples: int | None = None) -> int:
        """Return how many steps the run has taken: 0, or more after a resume or when this worker joins later::

            for _ in range(session.steps_taken(global_batch_size=512), STEPS):
                with session.step(global_batch_size=512) as n:

        ``global_batch_size`` and ``samples`` are those of :meth:`step`.
        """
        return self._steps.taken(global_batch_size, samples)

    # A bound method of the session, so that it stays alive and connected as long as its loader is used.
    def _begin(self, part: Portion) -> None:
        self._preparation.begin(part)

    def train(self, loop: Callable[..., object]) -> None:
        """Train one epoch in all threads; each calls ``loop(model, *optimizers, batches)``, in the order of setup::

            def loop(model, optimizer, batches):
                for x, y in batches:
                    F.cross_entropy(model(x), y).backward()
                    optimizer.step()
                    optimizer.zero_grad()

            session.train(loop)                # instead of: for x, y in loader

        With one thread this only calls ``loop(model, *optimizers, loader)``. With several, thread 0 is the caller's and
        uses the given objects; the others use copies on the same memory, without a lock. Learning rates and the state
        of the optimizers are shared too. The threads take batches from one queue, so each sample is used once an epoch.
        If a thread leaves its loop early, the others train on the remaining batches.

        Raises:
            ConfigError: called before setup and loader, or the model or an optimizer cannot be copied.
            Exception: the error of the thread that failed first; a note names the thread and the step.
        """
        self._preparation.train(loop)

    def pause_threads(self) -> AbstractContextManager[None]:
        """Pause the other threads between two steps during the block.

        For example, to save a checkpoint in the loop::

            with session.pause_threads():             # after optimizer.step()
                torch.save({"model": model.state_dict(), "session": session.state_dict()}, "checkpoint.pt")
        """
        return self._threads.pause_threads()

    @property
    def thread(self) -> int:
        """The index of the calling thread, 0 … ``threads`` − 1; thread 0 called :meth:`train`."""
        return self._threads.thread

    def no_sync(self) -> AbstractContextManager[None]:
        """Return a context in which backward passes add to ``.grad`` without an exchange, for gradient accumulation.
        The last backward pass before ``optimizer.step()`` must run outside of it."""
        return self._loop.gradients.no_sync()

    def loss_mean(self, count: float | Tensor) -> AbstractContextManager[None]:
        """Treat the loss inside as a mean over ``count`` items of this worker, not over its samples::

            with session.loss_mean((y != -100).sum()):           # tokens that are not padding
                loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten(), ignore_index=-100)
                loss.backward()

        The gradient is then that of one process on the whole batch, Σ (c_i / C) ḡ_i with C = Σ c_i. Put the forward
        pass inside; the backward pass may follow. Every worker must enter the same number of blocks. A worker with a
        count of 0 adds nothing, even if its mean is a NaN, except for passes in :meth:`no_sync`.

        Args:
            count: the divisor of the mean: tokens, the sum of class weights, pairs; scalar, finite, not negative.

        Raises:
            ConfigError: ``count`` is not valid, or gradients are not averaged over all workers in every step.
            TrainingError: all counts add up to 0; no forward pass is inside, or passes on two batches are.
            PeerError: a worker did not come.
        """
        return self._over_all.loss_mean(count)

    def loss_sum(self) -> AbstractContextManager[None]:
        """Treat the loss inside as a sum over this worker's samples; the gradient is then the sum of all workers'.

        Raises:
            ConfigError, TrainingError: as :meth:`loss_mean`.
        """
        return self._over_all.loss_sum()

    @property
    def loss_weight(self) -> float:
        """The weight of this worker's newest backward pass in the gradient: c_i / C; 1.0 in a single-process run.

        The sum of all workers' ``loss.item() * session.loss_weight`` is the loss over the global batch.
        """
        return self._over_all.loss_weight

    @overload
    def mean(self, x: float, weight: float | None = None) -> float: ...
    @overload
    def mean(self, x: Tensor, weight: float | None = None) -> Tensor: ...
    def mean(self, x: float | Tensor, weight: float | None = None) -> float | Tensor:
        """Return the mean of all workers' ``x``: Σ w_i x_i / Σ w_i. All workers call it, and wait for each other::

            session.log(loss=session.mean(loss.item()))          # the loss over the global batch

        Args:
            x: a number, or a tensor of the same shape on every worker.
            weight: of this worker's ``x``. By default its batch's weight (its samples, or the count of
                :meth:`loss_mean`), and 1 outside of a step.

        Returns:
            A number or tensor like ``x``, without gradient; NaN if all weights are 0. Tensors of integers and bools
            have a mean of torch's default type.

        Raises:
            ConfigError: before ``setup``; workers do not meet (``asp``); or an argument is complex or not a number.
            PeerError: a worker did not come.
        """
        return self._over_all.mean(x, weight)

    def microbatches(self, batch: Any) -> Iterator[Any]:
        """Yield pieces of the batch that fit in memory, each for a forward and a backward pass, as ``microbatch``
        sets::

            loader = session.loader(dataset, global_batch_size=512, microbatch="auto")
            session.profile(step)
            for batch in loader:
                for x, y in session.microbatches(batch):
                    F.cross_entropy(model(x), y).backward()      # mean over this piece
                optimizer.step()
                optimizer.zero_grad()

        The gradient is that of one pass over the whole batch. Workers may take different numbers of passes; all
        exchange in the last one. Inside ``with session.loss_mean(count):`` each loss must be its piece's sum divided by
        the count.

        With ``loader(…, together=True)`` the pieces come from a counter during the iteration, so that all workers end
        together at any speed; see :mod:`uneven.policy.samples.finish_together`.

        Raises:
            ConfigError: before ``setup``; the memory limit has not been measured; or ``together`` does not support the
                model or the policy.
            DataError: the batch holds no tensor.
            TrainingError: with ``together``, outside of the loop, or inside :meth:`loss_mean`.
        """
        return self._over_all.microbatches(batch)

    @overload
    def evaluate(
        self,
        fn: Callable[[Any], Mapping[str, float | Tensor]],
        dataset: Any,
        global_batch_size: int | None = None,
        **dataloader: Unpack[DataLoaderOptions],
    ) -> dict[str, float | Tensor]: ...
    @overload
    def evaluate(
        self,
        fn: Callable[[Any], float | Tensor],
        dataset: Any,
        global_batch_size: int | None = None,
        **dataloader: Unpack[DataLoaderOptions],
    ) -> float | Tensor: ...
    def evaluate(
        self,
        fn: Callable[[Any], Found],
        dataset: Any,
        global_batch_size: int | None = None,
        **dataloader: Unpack[DataLoaderOptions],
    ) -> dict[str, float | Tensor] | float | Tensor:
        """Return sums over a whole data set, which all workers process together, each at its own speed::

            def count(batch):
                x, y = batch
                logits = model(x)
                return {"loss": F.cross_entropy(logits, y, reduction="sum"), "right": (logits.argmax(1) == y).sum(),
                        "samples": len(y)}

            found = session.evaluate(count, held_out)         # on every worker
            print(found["loss"] / found["samples"])

        Each sample counts once, even if an elastic run loses a worker in it. The model is the one of
        :meth:`evaluation_model`, in evaluation mode, without gradients. All workers call it at the same place, inside
        or outside a loop; its time does not count in any iteration.

        Args:
            fn: a function from a batch to a number, a tensor, or a dictionary of them: sums over the batch.
            dataset: with an index, the same on every worker.
            global_batch_size: of all workers together, as in :meth:`loader`; by default the loader's.
            dataloader: for torch's ``DataLoader``, as in :meth:`loader`.

        Returns:
            The results of ``fn``, summed over all samples; the same on every worker. Sums of integers are exact; others
            are computed in float64, in an order that depends on which workers were free.

        Raises:
            ConfigError: before ``setup``; workers do not meet (``asp``), or one that joins an elastic run is not in it
                yet; the batch size is unknown; each worker holds a part of the model.
            DataError: the data set has no index, or differs between workers; or ``fn`` returned an unsupported value.
            PeerError: a worker did not come.
        """
        self._threads.check_outside("session.evaluate")
        found: dict[str, float | Tensor] | float | Tensor
        found = self._over_all.evaluate(fn, dataset, global_batch_size, check_keywords(Session.evaluate, dataloader))
        return found

    def evaluation_model(self) -> AbstractContextManager[None]:
        """Return a context in which the model is the one that the policy defines; evaluate and save that one::

            with session.evaluation_model():          # every worker
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
        self._threads.check_outside("session.evaluation_model")
        return self._loop.evaluation_model()

    def waiting(self) -> AbstractContextManager[None]:
        """Return a context for the script's own exchanges, in which this worker waits for others::

            with session.waiting():
                torch.distributed.all_reduce(statistics)

        Without it this time counts as computing, so a fast worker that waits for a slow one looks slow.
        ``torch.nn.SyncBatchNorm`` does not need it.
        """
        return self._loop.context.connection.waiting(self._loop.reports.books.meter)

    @property
    def shares(self) -> tuple[int, ...]:
        """The samples of each rank in the current batch; between epochs, those of the newest split."""
        return self._loop.current_shares()

    @property
    def next_shares(self) -> tuple[int, ...]:
        """The newest split that was decided; it may not be in force yet."""
        return self._loop.reports.next_shares

    @property
    def exchanging(self) -> bool:
        """True while a background exchange runs; steps take longer then."""
        return self._loop.model.agreement.exchanging

    def log(self, **scalars: float | Tensor) -> None:
        """Write ``scalars``, numbers with names, to the journal: ``session.log(loss=loss.item(), accuracy=…)``.

        If every worker logs a number, the report plots the mean weighted by their batches.

        Raises:
            NonFiniteError: a number is NaN or infinite and ``nonfinite="raise"``.
            ConfigError: a value is not a number.
        """
        with self._threads.at_own_step():
            self._loop.context.log(scalars, self._over_all.counts())

    def state_dict(self) -> dict[str, Any]:
        """Return the progress of this run as plain data, to be saved together with the model's state.

        The state of any rank is enough. Ranks differ in the state of their predictors. If workers take samples
        asynchronously, they also differ in the samples that they know to be left, except in :meth:`evaluation_model`.
        If a policy lets replicas differ, save models and optimizers on every rank to resume exactly, or save the model
        of :meth:`evaluation_model`.

        A sample counts as used once an optimizer step includes it. After a restart the loader repeats prefetched
        batches, and batches whose gradients are still in ``.grad``. In :meth:`evaluation_model` of a policy whose
        workers meet at a center, it also repeats those since the last exchange.

        Works with ``torch.save``, ``json`` and ``torch.distributed.checkpoint`` (a session is ``Stateful``).
        """
        return self._checkpoint.state_dict(self._threads.in_hand())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from ``state``, also with another number of workers; before or after ``loader``.

        Raises:
            CheckpointError: the state has another schema, or belongs to another data set or seed.
        """
        self._checkpoint.load_state_dict(state)

    def close(self) -> None:
        """End the run: write the last records and release process groups and files. Idempotent.

        The model stays as it is and trains without exchanges from here on. A session that is not closed closes when its
        loader and its model are no longer used, or at the end of the program.
        """
        if self._loop.loader is not None:
            self._loop.loader.close()
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
