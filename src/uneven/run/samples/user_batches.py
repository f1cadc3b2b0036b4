"""Steps of a script that draws its batches itself: they define the number of samples and the end of each step.

The session does not know the samples. So epochs do not end, and the script must ensure that every sample is used once.
The samples of a lost worker are not requeued: a step is the mean over the samples of the remaining workers.
"""

from collections.abc import Callable
from typing import Any, NoReturn

from uneven.errors import CheckpointError, DataError, TrainingError
from uneven.policy.core.plain import Count, loading, read
from uneven.policy.samples.order import Cursor, Portion
from uneven.policy.samples.requeued import RequeuedSamples


class DrawnSteps:
    """Counts steps and yields no batch; replaces :class:`uneven.run.samples.loader.BalancedLoader` and has its
    attributes."""

    samples = paced = first_samples = None
    lookahead = epoch = 0
    reads_along = False
    alike = ""

    def __init__(
        self,
        batch_size: int,  # the global batch X, samples of all workers together
        rank: int,
        *,
        adds_up: bool = False,  # whether every worker takes a fixed number in each step, so that X is their sum
        changing: RequeuedSamples | None = None,
        enter: Callable[[], None] | None = None,
    ) -> None:
        self.batch_size = batch_size
        self.adds_up = adds_up
        self.iteration = 0  # steps taken so far, and number of the next one
        self.enter: Callable[[], None] = enter or _nothing
        self._rank = rank
        self._changing = changing
        self._start = 0  # samples of all steps so far
        self._asked: Portion | None = None

    def ask(self, shares_for: Callable[[int], tuple[int, ...]]) -> Portion:
        """Return the next step, which does not change after the first call."""
        if self._asked is None:
            shares, members = shares_for(self.iteration), None
            if self._changing is not None:
                members = self._changing.members(self.iteration)
                # Drop requeued samples: only the script knows its samples, so none can be drawn again.
                self._changing.take(self.iteration, self._changing.waiting(self.iteration))
            self._asked = Portion(
                iteration=self.iteration, epoch=0, start=self._start, size=sum(shares), shares=shares, members=members
            )
            if self._changing is not None:
                self._changing.drawn(self._asked)
        return self._asked

    def next(self, shares_for: Callable[[int], tuple[int, ...]], samples: int | None) -> Portion:
        """Start the next step. Raises TrainingError if the script's ``samples`` are not this worker's share."""
        part = self.ask(shares_for)
        own = part.batch(self._rank)
        if samples is not None and samples != own:
            raise TrainingError(
                f"step {self.iteration} of rank {self._rank} takes {samples} samples, but its share of the global "
                f"batch of {part.size} is {own}: take the number that session.step(global_batch_size={part.size}) or "
                f"session.local_batch_size({part.size}) gives, or a fixed number with session.step(samples=n)"
            )
        self._asked, self.iteration, self._start = None, self.iteration + 1, part.end
        return part

    def place(self) -> tuple[Cursor, tuple[Portion, ...]]:
        """Return the place after the current step, and the step that was asked for beyond it; see
        ``BalancedLoader.place``."""
        return Cursor(0, self._start, self.iteration), () if self._asked is None else (self._asked,)

    def adopt(self, cursor: Cursor, drawn: tuple[Portion, ...]) -> None:
        self._start, self.iteration = cursor.start, cursor.iteration
        for part in drawn:
            self._asked = part
            if self._changing is not None:
                self._changing.adopt(part)

    def sample(self, samples: int) -> NoReturn:
        """Raise DataError: there is no data set to take a batch from."""
        raise DataError(
            "the script draws its batches itself: give batch_of, a function that makes a batch of n samples"
        )

    def state_dict(self, lacking: Cursor | None = None) -> dict[str, Any]:
        """Return the number of steps. The current step counts, because the script knows which samples it has used."""
        return {"drawn": self.iteration}

    def check_state(self, state: dict[str, Any]) -> int:
        """Return the number of steps in ``state``. Raises CheckpointError if the state is of a loader, or damaged."""
        if set(state) != {"drawn"}:
            raise CheckpointError(
                "the state is of a run with session.loader, but this script draws its batches: use a loader"
            )
        with loading("the steps"):
            return read(Count, state["drawn"])

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.iteration, self._asked = self.check_state(state), None
        self._start = self.iteration * self.batch_size

    def close(self) -> None:
        """Do nothing."""


def _nothing() -> None:
    pass
