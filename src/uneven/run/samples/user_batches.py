"""Steps of a script that draws its batches itself: it learns how many samples to take, and says when a step is over.

Nothing here knows the samples, so no epoch ends, and that every sample is used once is the script's own affair. Where
workers come and go, a step is the mean over the samples of those who were in it; what a lost one had drawn does not
come again by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from uneven.errors import CheckpointError, DataError, TrainingError
from uneven.policy.core.plain import Count, loading, read
from uneven.policy.samples.order import Changing, Cursor, Portion


class DrawnSteps:
    """Stands where :class:`uneven.run.samples.loader.BalancedLoader` does: it counts the steps, and hands out no batch.

    Args:
        batch_size: the global batch X, samples of all workers together.
        adds_up: whether every worker takes a number of its own in each step, so that X is what they add up to.
        changing, enter: see ``BalancedLoader``.

    Attributes:
        samples, paced, first_samples, lookahead, reads_along, epoch, alike: see ``BalancedLoader``.
        iteration: steps taken so far; the next one has this number.
    """

    samples = paced = first_samples = None
    lookahead = epoch = 0
    reads_along = False
    alike = ""

    def __init__(
        self, batch_size: int, rank: int, *, adds_up: bool = False, changing: Changing | None = None,
        enter: Callable[[], None] | None = None,
    ) -> None:  # fmt: skip
        self.batch_size, self.adds_up = batch_size, adds_up
        self.iteration = 0
        self.enter: Callable[[], None] = enter or _nothing
        self._rank = rank
        self._changing = changing
        self._start = 0  # samples of all steps so far
        self._asked: Portion | None = None

    def ask(self, shares_for: Callable[[int], tuple[int, ...]]) -> Portion:
        """The next step, which stays as it is from the first time that it is asked for.

        Args:
            shares_for: number of a step → the shares in force for it.
        """
        if self._asked is None:
            shares, members = shares_for(self.iteration), None
            if self._changing is not None:
                members = self._changing.members(self.iteration)
                self._changing.take(self.iteration, self._changing.waiting(self.iteration))  # that nobody draws again
            self._asked = Portion(
                iteration=self.iteration, epoch=0, start=self._start, size=sum(shares), shares=shares, members=members
            )
            if self._changing is not None:
                self._changing.drawn(self._asked)
        return self._asked

    def next(self, shares_for: Callable[[int], tuple[int, ...]], samples: int | None) -> Portion:
        """The next step begins.

        Args:
            shares_for: see :meth:`ask`.
            samples: that the script says it takes; None for its share.

        Raises:
            TrainingError: that is not this worker's share, so that its gradient would count for another number.
        """
        part = self.ask(shares_for)
        own = part.batch(self._rank)
        if samples is not None and samples != own:
            raise TrainingError(
                f"step {self.iteration} of rank {self._rank} takes {samples} samples, but its share of the global "
                f"batch of {part.size} is {own}: take as many as session.step(batch_size={part.size}) or "
                f"session.share({part.size}) says, or the same number in each step with session.step(samples=n)"
            )
        self._asked, self.iteration, self._start = None, self.iteration + 1, part.end
        return part

    def place(self) -> tuple[Cursor, tuple[Portion, ...]]:
        """See ``BalancedLoader.place``: behind the step in hand, and the one that was asked for beyond that."""
        return Cursor(0, self._start, self.iteration), () if self._asked is None else (self._asked,)

    def adopt(self, cursor: Cursor, drawn: tuple[Portion, ...]) -> None:
        """Inverse of :meth:`place`, on a worker that joins."""
        self._start, self.iteration = cursor.start, cursor.iteration
        for part in drawn:
            self._asked = part
            if self._changing is not None:
                self._changing.adopt(part)

    def sample(self, samples: int) -> NoReturn:
        """There is no data set to take a batch from.

        Raises:
            DataError: always.
        """
        raise DataError("the script draws its batches itself: give batch_of, a function that makes a batch of so many")

    def state_dict(self, lacking: Cursor | None = None) -> dict[str, Any]:
        """How far the run is. Steps in hand count, as the script knows what it has trained on."""
        return {"drawn": self.iteration}

    def check_state(self, state: dict[str, Any]) -> int:
        """The number of steps in ``state``.

        Raises:
            CheckpointError: it is that of a loader, or damaged.
        """
        if set(state) != {"drawn"}:
            raise CheckpointError(
                "the state is of a run with session.loader, this one draws its batches itself: resume with a loader"
            )
        with loading("the steps"):
            return read(Count, state["drawn"])

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.iteration, self._asked = self.check_state(state), None
        self._start = self.iteration * self.batch_size

    def close(self) -> None:
        """Nothing to let go of."""


def _nothing() -> None:
    pass
