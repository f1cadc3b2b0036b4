"""Training with several threads; see :meth:`uneven.Session.train`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import nn

from uneven.errors import CheckpointError, ConfigError, TrainingError
from uneven.policy.samples.order import Portion
from uneven.run.samples.loader import BalancedLoader
from uneven.run.step.loop import StepLoop
from uneven.run.threads.hogwild import Hogwild, Loop


class Threads:
    """The threads that train this worker's replica, and the checks of what they support."""

    def __init__(self, loop: StepLoop) -> None:
        self.count = loop.context.config.threads  # at least 1
        self._loop = loop
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
        self._running = Hogwild(self._loop, self._loop.context.scribe, loader, model, optimizers, self.count)
        try:
            self._running.run(loop)
        finally:
            self._running = None

    @property
    def thread(self) -> int:
        return self._running.thread if self._running is not None else 0

    def paused(self) -> AbstractContextManager[None]:
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
                "session.state_dict() while other threads are in the middle of a step: save everything that belongs "
                "together inside `with session.paused():`"
            )
        return parts
