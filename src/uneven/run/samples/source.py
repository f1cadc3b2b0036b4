"""Where the batches of one rank come from: a data set with an index, a stream that all read alike, or a shard of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Any

from uneven.errors import DataError
from uneven.policy.samples.order import Cursor, Portion

if TYPE_CHECKING:
    from uneven.policy.samples.paced import PacedSampler


class BatchSource(ABC):
    """The batches of one rank; what it says of itself is that of a stream, unless it says something else.

    Attributes:
        length: samples in an epoch; None where nobody knows before its end.
        batches: global batches in an epoch where a sampler says so, else None.
        kind: how samples are ordered, for a state that must fit; see :mod:`.state`.
        lookahead: batches whose indices are drawn beyond the one that was handed out last.
        reads_along: whether batches are read in this process, between the user's steps.
        alike: what else must be the same on all ranks.
        paced: what draws the batches where workers take them at their own pace.
    """

    length: int | None = None
    batches: int | None = None
    kind = ""
    lookahead = 0
    reads_along = False
    alike = ""
    paced: PacedSampler | None = None

    @abstractmethod
    def pairs(self, cursor: Cursor) -> Generator[tuple[Portion, Any], None, None]:
        """Parts and this rank's batches, from ``cursor`` to the end of the epoch."""

    @abstractmethod
    def close(self) -> None:
        """Let torch's loader go, and its reader processes with it."""

    @abstractmethod
    def resume(self, cursor: Cursor, state: Mapping[str, Any]) -> None:
        """The next pass begins at ``cursor``, where :meth:`state` was taken.

        Raises:
            CheckpointError: that was another data set.
        """

    @property
    def drawn(self) -> deque[Portion]:
        """Parts that torch has drawn, and that were not handed out."""
        return deque()

    def tell(self) -> list[float] | None:
        """What tells the samples of this pass from those of other ranks; None where they may differ, or cannot."""
        return None

    def some(self) -> list[float] | None:
        """What tells the data set from those of other ranks before the first pass; None where they cannot be read."""
        return None

    def state(self, cursor: Cursor) -> dict[str, Any]:
        """What belongs to a loader's state at ``cursor``, beside the cursor."""
        return {}

    def sample(self, samples: int) -> Any:
        """A batch of so many samples to try a step on; nothing of the epoch is used up.

        Raises:
            DataError: what is read for it would be missing in the epoch.
        """
        raise DataError(
            "a stream gives no samples to try a step on: give batch_of, a function that makes a batch of so many"
        )
