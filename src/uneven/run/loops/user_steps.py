"""Steps without a loader, for scripts that draw their batches themselves; see :meth:`uneven.Session.step`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from uneven.errors import ConfigError, TrainingError
from uneven.policy.core.registry import describe
from uneven.policy.samples.order import Portion
from uneven.run.samples.loader import BalancedLoader
from uneven.run.samples.user_batches import DrawnSteps
from uneven.run.start.connect import compare
from uneven.run.step.checkpoint import Checkpoint
from uneven.run.step.loop import StepLoop


class UserSteps:
    """Steps whose start and end the script marks."""

    def __init__(self, loop: StepLoop, checkpoint: Checkpoint) -> None:
        self._loop = loop
        self._checkpoint = checkpoint

    @contextmanager
    def step(self, batch_size: int | None, samples: int | None, begin: Callable[[Portion], None]) -> Iterator[int]:
        """Run one step, and yield this worker's samples in it."""
        loop, steps = self._loop, self._steps(batch_size, samples)
        if loop.part is not None:
            raise TrainingError(
                f"session.step inside of step {loop.part.iteration}, which has not ended: end it first; if a "
                "generator is inside it, close the generator"
            )
        steps.enter()
        part = steps.next(loop.reports.shares, samples)
        begin(part)
        loop.hands.settle()  # the batch of an earlier block without a forward pass will not get one
        loop.hands.hand(part, None)
        try:
            yield part.batch(loop.context.rank)
        except BaseException:
            loop.end(leaving=True)
            raise
        loop.end(leaving=False)

    def local_batch_size(self, batch_size: int) -> int:
        steps = self._entered(batch_size, None)
        return steps.ask(self._loop.reports.shares).batch(self._loop.context.rank)

    def taken(self, batch_size: int | None, samples: int | None) -> int:
        return self._entered(batch_size, samples).iteration

    def _entered(self, batch_size: int | None, samples: int | None) -> DrawnSteps:
        steps = self._steps(batch_size, samples)
        steps.enter()
        return steps

    def _steps(self, batch_size: int | None, samples: int | None) -> DrawnSteps:
        """Return the steps, which the first call makes."""
        self._loop.check_open("session.step")
        loader = self._loop.loader
        if isinstance(loader, BalancedLoader):
            raise ConfigError(
                "session.step and session.local_batch_size are for loops without a loader: leave session.loader out"
            )
        if (batch_size is None) == (samples is None):
            raise ConfigError(f"session.step(global_batch_size={batch_size}, samples={samples}): give one of the two")
        number = samples if batch_size is None else batch_size
        if type(number) is not int or number < (batch_size is not None):  # True is an int for isinstance
            raise ConfigError(
                f"session.step(global_batch_size={batch_size!r}, samples={samples!r}): give a number of samples"
            )
        if loader is None:
            loader = self._made(batch_size, samples)
            self._checkpoint.begin_with(loader)
        elif batch_size not in (None, loader.batch_size):
            raise ConfigError(
                f"session.step(global_batch_size={batch_size}): the first one had {loader.batch_size}; give the same "
                "in every step"
            )
        return loader

    def _made(self, batch_size: int | None, samples: int | None) -> DrawnSteps:
        loop, context = self._loop, self._loop.context
        if loop.own_pace is not None:
            raise ConfigError(
                f"session.step under sync = {describe(context.policy)}: its workers take samples at their own pace, "
                "which only session.loader supports; use a loader, or a policy whose workers step together"
            )
        size, there = batch_size, context.participants
        if size is None:
            said = compare(context.connection.transport, {"_samples": samples}, "session.step")
            each = [int(one["_samples"]) for one in said[: context.world.size]]  # of the founders
            if (size := sum(each)) == 0:
                raise ConfigError(f"session.step(samples=…): the workers give {each}; at least one must be above 0")
        adds_up = batch_size is None
        steps = DrawnSteps(size, context.rank, adds_up=adds_up, changing=there.changing, enter=there.enter)
        loop.reports.start(steps, samples, samples)  # limits that are equal, if given: the share cannot move
        return steps
