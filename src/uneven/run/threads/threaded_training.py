"""The interface of a session to training with several threads."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from uneven.errors import CheckpointError, ConfigError, TrainingError
from uneven.policy.samples.order import Portion
from uneven.run.samples.loader import BalancedLoader
from uneven.run.samples.user_batches import DrawnSteps
from uneven.run.step.loop import StepLoop
from uneven.run.step.scribe import Scribe
from uneven.run.threads.hogwild import Hogwild, Loop


class ThreadedTraining:
    """The session's public methods for training with several threads; a base class of ``Session``."""

    _threads: Threads
    _loader: BalancedLoader | DrawnSteps | None
    _tried: tuple[weakref.ref[Any], ...] | None
    _loop: StepLoop

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
        if not isinstance(self._loader, BalancedLoader) or self._tried is None:
            raise ConfigError("session.train comes after session.setup(model, optimizer) and session.loader(...)")
        self._say_ready()
        if self._threads.count > 1:
            watch = self._loop.model.watch
            watch.begin(watch.epoch + 1)
        self._threads.train(loop, self._loader, *self._given(self._tried, "session.train"))

    def paused(self) -> AbstractContextManager[None]:
        """Pause the other threads between two steps during the block, for example to save a checkpoint in the loop::

        with session.paused():             # after optimizer.step()
            torch.save({"model": model.state_dict(), "session": session.state_dict()}, "checkpoint.pt")
        """
        return self._threads.paused()

    @property
    def thread(self) -> int:
        """The index of the calling thread, 0 … ``threads`` − 1; thread 0 called :meth:`train`."""
        return self._threads.thread

    def _given(
        self, given: tuple[weakref.ref[Any], ...], caller: str
    ) -> tuple[nn.Module, tuple[torch.optim.Optimizer, ...]]:
        model, *optimizers = (one() for one in given)
        if model is None:
            raise ConfigError(f"{caller}: the model that was given to session.setup is gone")
        return model, tuple(one for one in optimizers if one is not None)

    def _say_ready(self) -> bool:
        raise NotImplementedError


class Threads:
    """The threads that train this worker's replica, and the checks of what they support."""

    def __init__(self, count: int, loop: StepLoop, scribe: Scribe) -> None:
        self.count = count  # at least 1
        self._loop = loop
        self._scribe = scribe
        self._running: Hogwild | None = None

    def check(self, model: nn.Module) -> None:
        """Raise ConfigError if several threads would train a model that is not on the CPU."""
        found = {one.device.type for one in model.parameters()} - {"cpu"}
        if self.count > 1 and found:
            raise ConfigError(
                f"threads = {self.count} with a model on {found.pop()}: threads share a processor's memory; put the "
                f"model on the CPU, or use threads = 1"
            )

    def check_one(self, what: str) -> None:
        """Raise ConfigError if there are several threads; the error suggests ``what``."""
        if self.count > 1:
            raise ConfigError(f"threads = {self.count}: {what}, or use threads = 1")

    def check_outside(self, what: str) -> None:
        """Raise TrainingError while threads train; ``what`` belongs between two calls of ``session.train``."""
        if self._running is not None:
            raise TrainingError(f"{what} while {self.count} threads train: call it between two session.train(...)")

    def train(
        self, loop: Loop, loader: BalancedLoader, model: nn.Module, optimizers: tuple[torch.optim.Optimizer, ...]
    ) -> None:
        self.check_outside("session.train")
        if self.count == 1:
            loop(model, *optimizers, loader)
            return
        self._running = Hogwild(self._loop, self._scribe, loader, model, optimizers, self.count)
        try:
            self._running.run(loop)
        finally:
            self._running = None

    @property
    def thread(self) -> int:
        return self._running.thread if self._running is not None else 0

    def paused(self) -> AbstractContextManager[None]:
        return self._running.paused() if self._running is not None else nullcontext()

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
                "session.state_dict() while other threads are in the middle of a step: save everything that belongs "
                "together inside `with session.paused():`"
            )
        return parts
