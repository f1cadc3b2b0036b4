"""Steps of a script that draws its batches itself: it learns how many samples to take, and says when a step is over.

Nothing here knows the samples, so no epoch ends, and that every sample is used once is the script's own affair.
"""

from __future__ import annotations

from typing import Any, NoReturn

from uneven.core.plain import Count, loading, read
from uneven.data.order import Cursor, Portion
from uneven.errors import CheckpointError, DataError, TrainingError


class DrawnSteps:
    """Stands where :class:`uneven.data.loader.BalancedLoader` does: it counts the steps, and hands out no batch.

    Args:
        batch_size: the global batch X, samples of all workers together.

    Attributes:
        samples, paced, first_samples, lookahead, reads_along, epoch, alike: see ``BalancedLoader``.
        iteration: steps taken so far; the next one has this number.
    """

    samples = paced = first_samples = None
    lookahead = epoch = 0
    reads_along = False
    alike = ""

    def __init__(self, batch_size: int, rank: int) -> None:
        self.batch_size, self.iteration = batch_size, 0
        self._rank = rank

    def next(self, shares: tuple[int, ...], samples: int | None) -> Portion:
        """The next step.

        Args:
            shares: in force for it.
            samples: that the script says it takes; None for its share.

        Raises:
            TrainingError: that is not this worker's share, so that its gradient would count for another number.
        """
        own = shares[self._rank]
        if samples is not None and samples != own:
            raise TrainingError(
                f"step {self.iteration} of rank {self._rank} takes {samples} samples, but its share of the global "
                f"batch of {self.batch_size} is {own}: take as many as session.step(batch_size={self.batch_size}) or "
                f"session.share({self.batch_size}) says, or the same number in each step with session.step(samples=n)"
            )
        part = Portion(
            iteration=self.iteration, epoch=0, start=self.iteration * self.batch_size, size=self.batch_size,
            shares=shares,
        )  # fmt: skip
        self.iteration += 1
        return part

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
        """Inverse of :meth:`state_dict`."""
        self.iteration = self.check_state(state)

    def close(self) -> None:
        """Nothing to let go of."""
