"""Lock-free training of one replica by several threads of a worker (Hogwild inside a trainer, ShadowSync §1.2).

Thread 0 is the caller's, with the model and optimizers given to ``session.setup``. The other threads have copies on the
same memory. All take this worker's batches from one queue.
"""

import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import nn

from uneven.errors import CheckpointError, ConfigError, TrainingError
from uneven.policy.core.records import StepRecord
from uneven.policy.samples.order import Portion
from uneven.run.context.scribe import Scribe
from uneven.run.measure.meter import Meter, MeterReading, ThreadClock
from uneven.run.replicas.replica_sync import ReplicaSync
from uneven.run.reports.step_accounting import step_record
from uneven.run.samples.loader import BalancedLoader
from uneven.run.step.loop import StepLoop
from uneven.run.threads.batch_queue import BatchQueue, Stopped
from uneven.run.threads.twins import SharedOptimizer, twin

Loop = Callable[..., object]  # called as ``loop(model, *optimizers, batches)``


@dataclass(slots=True)
class _Seat:
    """A thread's model, optimizers and measurements."""

    index: int
    model: nn.Module
    optimizers: tuple[torch.optim.Optimizer, ...]
    meter: Meter
    part: Portion | None = None
    control_s: float = 0.0


class Batches:
    """The iterable of a thread's loop: the batches that no other thread has taken."""

    def __init__(self, hogwild: "Hogwild", seat: _Seat, loader: BalancedLoader) -> None:
        self._hogwild = hogwild
        self._seat = seat
        self._loader = loader

    def __iter__(self) -> Generator[Any, None, None]:
        return self._hogwild.batches(self._seat)

    def __len__(self) -> int:
        """Return the number of this worker's batches in an epoch, over all its threads."""
        return len(self._loader)


class Hogwild:
    """One epoch of one worker, trained by several threads (two or more).

    Raises:
        ConfigError: the model or an optimizer cannot be copied.
    """

    def __init__(
        self,
        loop: StepLoop,
        scribe: Scribe,
        loader: BalancedLoader,
        model: nn.Module,
        optimizers: tuple[torch.optim.Optimizer, ...],
        threads: int,
    ) -> None:
        self._loop = loop
        self._scribe = scribe
        self._loader = loader
        self._threads = threads
        self._pairs = loader.pairs()
        alike = loop.model.agreement.gradients_only  # then only gradients are exchanged
        agreement = None if alike else cast(ReplicaSync, loop.model.agreement)
        self._queue = BatchQueue(self._pairs, scribe.rank, loop.context.participants, agreement)
        self._shared = [SharedOptimizer(one) for one in optimizers]
        self._seats = [_Seat(0, model, optimizers, Meter(ThreadClock()))]
        for index in range(1, threads):
            copied, aliases = twin(model)
            steppers = tuple(one.copy(aliases) for one in self._shared)
            self._seats.append(_Seat(index, copied, steppers, Meter(ThreadClock())))
        if agreement is not None:
            agreement.threads = threads
        self._go = threading.Event()  # set when all threads have started: after Ctrl-C before that none must train
        self._here = threading.local()
        self._writing = threading.Lock()
        self._unwritten: dict[int, StepRecord] = {}

    def run(self, loop: Loop) -> None:
        """Run ``loop`` in all threads until all have finished; raise the error of the thread that failed first."""
        try:
            for one in self._shared:
                one.open()
            with _shared_out(self._threads), ThreadPoolExecutor(self._threads - 1, "uneven-hogwild") as pool:
                others = self._lead(loop, pool)
        finally:
            self._pairs.close()
            for one in self._shared:
                one.close()
        self._raise_first(others)

    def _lead(self, loop: Loop, pool: ThreadPoolExecutor) -> list[Future[None]]:
        """Start the other threads and run thread 0; return the others' futures."""
        others: list[Future[None]] = []
        through = False
        try:  # Ctrl-C arrives in this thread at any moment, so `finally` ends the other threads
            for seat in self._seats[1:]:
                others.append(pool.submit(self._aside, seat, loop))
            self._go.set()
            self._work(self._seats[0], loop)
            wait(others)
            through = True
        except Stopped:
            pass
        finally:
            if not through:
                self._queue.stop(0)
            self._go.set()
        return others

    def _aside(self, seat: _Seat, loop: Loop) -> None:
        self._go.wait()
        if self._queue.first is None:
            self._work(seat, loop)

    def _work(self, seat: _Seat, loop: Loop) -> None:
        self._here.seat, through = seat, False
        batches = Batches(self, seat, self._loader)
        try:
            loop(seat.model, *seat.optimizers, batches)
            through = True
        except Stopped:
            raise
        except BaseException as error:
            error.add_note(self._where(seat))
            raise
        finally:
            if not through:
                self._queue.stop(seat.index)
            self._queue.leave(seat.index)
            for shared, stepper in zip(self._shared, seat.optimizers, strict=True):
                shared.let_go(stepper)

    def _where(self, seat: _Seat) -> str:
        step = "before its first step" if seat.part is None else f"in iteration {seat.part.iteration}"
        return f"in thread {seat.index} of rank {self._scribe.rank}, {step}; the other threads were stopped"

    def _raise_first(self, others: list[Future[None]]) -> None:
        first = self._queue.first
        if first is None or first == 0:  # the error of thread 0 propagates already
            return
        error = others[first - 1].exception()
        if isinstance(error, SystemExit):  # this worker leaves an elastic run
            raise error
        if error is not None:
            self._scribe.event("thread-failed", f"{type(error).__name__}: {error}: {error.__notes__[-1]}")
            raise error

    # ---------------------------------------------------------------- around a step, in every thread
    def batches(self, seat: _Seat) -> Generator[Any, None, None]:
        while (taken := self._take(seat)) is not None:
            part, batch = taken
            seat.part = part
            self._scribe.iteration = part.iteration
            seat.meter.begin(part.iteration)
            try:
                yield batch
            finally:
                self._over(seat, part)

    def _take(self, seat: _Seat) -> tuple[Portion, Any] | None:
        pauses = self._queue.pauses
        taken = self._queue.take(seat.index)
        if self._queue.pauses != pauses:  # this thread waited for a pause of the user's, not for data
            seat.meter.pause()
        return taken

    def _over(self, seat: _Seat, part: Portion) -> None:
        seat.meter.ready()  # the time until `done` counts as exchange: waiting for other threads and workers
        counts = self._queue.finish(seat.index)
        seat.meter.done()
        seat.meter.end()
        entered_s = time.thread_time()
        for timing in seat.meter.timings():
            if counts:
                self._record(seat, part, timing)
        seat.control_s = time.thread_time() - entered_s

    def _record(self, seat: _Seat, part: Portion, timing: MeterReading) -> None:
        """Write the record of a step when all steps before it have finished too, so that records are in order."""
        with self._writing:
            self._unwritten[part.iteration] = step_record(
                self._scribe.rank, part, timing, seat.control_s, 0.0, thread=seat.index, threads=self._threads
            )
            handed = self._queue.handed
            while handed and (record := self._unwritten.pop(handed[0], None)) is not None:
                handed.popleft()
                self._scribe.write(replace(record, ended_at_s=time.time()))
            trained_s = timing.whole_s / self._threads  # the threads' steps overlap in time
            load = self._loop.reports.books.load.sample(part.iteration, part.batch(self._scribe.rank), trained_s)
            if load is not None:
                self._scribe.write(load)

    # ---------------------------------------------------------------- asked for in a thread's loop
    @property
    def thread(self) -> int:
        return self._here.seat.index if hasattr(self._here, "seat") else 0

    @contextmanager
    def paused(self) -> Iterator[None]:
        with self._queue.paused(self.thread):
            yield

    @contextmanager
    def at_own_step(self) -> Iterator[None]:
        """Write records of the block under the iteration of this thread's step."""
        with self._writing:
            if hasattr(self._here, "seat") and self._here.seat.part is not None:
                self._scribe.iteration = self._here.seat.part.iteration
            yield

    def in_hand(self) -> tuple[Portion, ...] | None:
        return self._queue.in_hand(self.thread)

    def settle(self, call: Callable[[], None]) -> None:
        self._queue.settle(self.thread, call)


@contextmanager
def _shared_out(threads: int) -> Iterator[None]:
    """Divide torch's intra-op threads among our threads."""
    before = torch.get_num_threads()
    each = max(1, before // threads)
    if each != before:
        torch.set_num_threads(each)
    try:
        yield
    finally:
        if each != before:
            torch.set_num_threads(before)


class Threads:
    """The threads that train this worker's replica, and the checks of supported settings."""

    def __init__(self, loop: StepLoop) -> None:
        self.count = loop.context.config.threads  # at least 1
        self._loop = loop
        self._running: Hogwild | None = None

    def check(self, model: nn.Module) -> None:
        """Raise ConfigError if several threads would train a model that is not on the CPU."""
        found = {one.device.type for one in model.parameters()} - {"cpu"}
        if self.count > 1 and found:
            raise ConfigError(
                f"threads = {self.count} with a model on {found.pop()}: threads share memory on the CPU only; move "
                "the model there, or use threads = 1"
            )

    def check_one(self, what: str) -> None:
        """Raise ConfigError if there are several threads; the error suggests ``what``."""
        if self.count > 1:
            raise ConfigError(f"threads = {self.count}: {what}, or use threads = 1")

    def check_outside(self, what: str) -> None:
        """Raise TrainingError while threads train; ``what`` belongs between two calls of ``session.train``."""
        if self._running is not None:
            raise TrainingError(f"{what} while {self.count} threads train: call it between two calls of session.train")

    def train(
        self, loop: Loop, loader: BalancedLoader, model: nn.Module, optimizers: tuple[torch.optim.Optimizer, ...]
    ) -> None:
        self.check_outside("session.train")
        if self.count == 1:
            loop(model, *optimizers, loader)
            return
        self._running = Hogwild(self._loop, self._loop.context.scribe, loader, model, optimizers, self.count)
        try:
            self._running.run(loop)
        finally:
            self._running = None

    @property
    def thread(self) -> int:
        return self._running.thread if self._running is not None else 0

    def pause_threads(self) -> AbstractContextManager[None]:
        return self._running.paused() if self._running is not None else nullcontext()

    def settle(self, call: Callable[[], None]) -> None:
        """Call it when the steps of all threads have finished."""
        if self._running is None:
            call()
        else:
            self._running.settle(call)

    @contextmanager
    def at_own_step(self) -> Iterator[None]:
        with self._running.at_own_step() if self._running is not None else nullcontext():
            yield

    def in_hand(self) -> tuple[Portion, ...]:
        """Return the batches of unfinished steps, which count as used in a state saved now.

        Raises:
            CheckpointError: other threads are in the middle of a step.
        """
        if self._running is None:
            return ()
        parts = self._running.in_hand()
        if parts is None:
            raise CheckpointError(
                "session.state_dict() while other threads are in a step: save inside `with session.pause_threads():`"
            )
        return parts
