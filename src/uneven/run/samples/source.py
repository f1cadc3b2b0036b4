"""The base of batch sources: a data set with an index, a stream that all ranks read, or a shard of a stream."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Any

from uneven.errors import DataError
from uneven.policy.samples.order import Cursor, Portion

if TYPE_CHECKING:
    from uneven.policy.samples.paced import PacedSampler


class BatchSource(ABC):
    """The batches of one rank. The defaults here are those of a stream."""

    length: int | None = None  # samples in an epoch; None if unknown before its end
    batches: int | None = None  # global batches in an epoch, if a sampler defines them; otherwise None
    kind = ""  # how samples are ordered, which a loaded state must match; see `state`
    lookahead = 0  # batches whose indices are drawn after the last yielded one
    reads_along = False  # whether this process reads batches between the user's steps
    alike = ""  # fingerprint of other options that must be the same on all ranks
    paced: "PacedSampler | None" = None  # the sampler of workers that take batches asynchronously; otherwise None

    @abstractmethod
    def pairs(self, cursor: Cursor) -> Generator[tuple[Portion, Any], None, None]:
        """Yield parts and this rank's batches, from ``cursor`` to the end of the epoch."""

    @abstractmethod
    def close(self) -> None:
        """Release torch's loader, and so its reader processes."""

    @abstractmethod
    def resume(self, cursor: Cursor, state: Mapping[str, Any]) -> None:
        """Start the next pass at ``cursor``, with its ``state``; raises CheckpointError if that was another data
        set."""

    @property
    def drawn(self) -> deque[Portion]:
        """The parts that torch has drawn and the loader has not yielded."""
        return deque()

    def tell(self) -> list[float] | None:
        """Return a fingerprint of this pass's samples; None if ranks may differ or cannot."""
        return None

    def some(self) -> list[float] | None:
        """Return a fingerprint of the data set before the first pass; None if its samples cannot be read."""
        return None

    def state(self, cursor: Cursor) -> dict[str, Any]:
        """Return the state at ``cursor``, without the cursor."""
        return {}

    def sample(self, samples: int) -> Any:
        """Return a batch for a trial step; raises DataError if its samples would be missing in the epoch."""
        raise DataError(
            "a stream has no samples for a trial step: give batch_of, a function that makes a batch of n samples"
        )
