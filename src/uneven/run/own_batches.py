"""The part of a session for loops that draw their batches themselves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from uneven.policy.balance import Balancer
from uneven.policy.samples.order import Portion
from uneven.run.place import PlaceInRun
from uneven.run.samples.loader import BalancedLoader
from uneven.run.samples.user_batches import DrawnSteps
from uneven.run.step.open_loader import drawn_step, drawn_steps


class OwnBatches(PlaceInRun):
    """Steps without a loader: the script marks their start and end."""

    _balancer: Balancer
    _loader: BalancedLoader | DrawnSteps | None
    _loaded: dict[str, Any] | None

    @contextmanager
    def step(self, batch_size: int | None = None, *, samples: int | None = None) -> Iterator[int]:
        """Make a block a step, for loops that draw their batches themselves; instead of :meth:`loader`::

            for _ in range(steps):
                with session.step(batch_size=512) as n:      # n: this worker's part of 512
                    x, y = get_batch(n)
                    loss = F.cross_entropy(model(x), y)      # mean over these n
                    loss.backward()
                    optimizer.step()
                    optimizer.zero_grad()

        Every worker takes the same number of steps. :meth:`share` returns n before the block, :meth:`steps_taken` the
        number of the first step.

        Args:
            batch_size: the global batch, the same in every step: the samples of all workers together.
            samples: instead, this worker's samples in every step, for full batches and fixed graph partitions. They
                weight the gradients; nothing is balanced.

        Raises:
            ConfigError: neither or both are given, or other ones than in the first step; there is a loader; the policy
                takes samples asynchronously (``asp``, ``easgd``, …) and needs a loader; or the session is closed.
            TrainingError: ``samples`` differ from the first step, or another step is under way.
        """
        steps = self._steps(batch_size, samples)
        with drawn_step(self._loop, steps, samples, self._begin) as part:
            yield part.batch(self.worker)

    def share(self, batch_size: int) -> int:
        """Return this worker's samples in the next :meth:`step`, of a global batch of ``batch_size``."""
        steps = self._steps(batch_size, None)
        steps.enter()
        return steps.ask(self._loop.reports.shares).batch(self.worker)

    def steps_taken(self, batch_size: int | None = None, *, samples: int | None = None) -> int:
        """Return how many steps the run has taken: 0, or more after a resume or when this worker joins later::

            for _ in range(session.steps_taken(batch_size=512), STEPS):
                with session.step(batch_size=512) as n:

        The arguments are those of :meth:`step`.
        """
        steps = self._steps(batch_size, samples)
        steps.enter()
        return steps.iteration

    def _steps(self, batch_size: int | None, samples: int | None) -> DrawnSteps:
        steps = drawn_steps(self._loader, self._loop, self._balancer, batch_size, samples)
        if self._loader is None:
            self._loader = self._members.loader = steps
            self._restore(self._loaded)
        return steps

    def _begin(self, part: Portion) -> None:
        raise NotImplementedError  # the session's

    def _restore(self, state: dict[str, Any] | None) -> None:
        raise NotImplementedError  # the session's
