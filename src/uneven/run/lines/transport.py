"""The slow loop's interface to other workers.

Gradients have their own exchange (:mod:`uneven.run.gradients.bucket_gradients`), because the fast loop must not wait
for the slow one.
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.float64]


class Pending(Protocol):
    """Rows under way: a gather, or rows piggybacked on an exchange."""

    def result(self) -> Rows | None:
        """Return all workers' rows, shape (ranks, length of a row); a gather waits for missing ones.

        None on all ranks if the exchange that carries them has not taken place yet.

        Raises:
            PeerError: a worker did not send its row in time; the message names it.
        """


@runtime_checkable
class Transport(Protocol):
    """One worker's end of the transport. Every worker makes the same calls in the same order."""

    rank: int
    size: int

    def gather(self, row: Sequence[float]) -> Pending:
        """Start an all-gather of this row; returns immediately. Rows have the same length on all workers."""

    def gather_text(self, text: str) -> tuple[str, ...]:
        """Return all workers' texts, by rank; waits. For the start of a run, not for every step."""

    def close(self) -> None:
        """Release sockets and threads; idempotent."""
