"""The narrow seam to the other workers: what the slow loop needs, and no more.

Gradients do not pass here; they have a carrier of their own (:mod:`uneven.run.gradients.carrier`), because the
fast loop must not wait for the slow one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.float64]


class Pending(Protocol):
    """Rows under way: a gather, or passengers of an exchange."""

    def result(self) -> Rows | None:
        """Everybody's row, by rank; shape (ranks, length of a row). A gather waits for those that are missing.

        None where the exchange that carries them has not been yet; then it has not on any rank.

        Raises:
            PeerError: somebody did not send one in time; the message says who.
        """
        ...


@runtime_checkable
class Transport(Protocol):
    """One worker's end of the line. Every worker makes the same calls in the same order.

    Attributes:
        rank: this worker.
        size: number of workers.
    """

    rank: int
    size: int

    def gather(self, row: Sequence[float]) -> Pending:
        """Start to give this row to everybody. Returns at once; rows have the same length everywhere."""
        ...

    def gather_text(self, text: str) -> tuple[str, ...]:
        """Everybody's text, by rank. Waits; for the start of a run, not for every step."""
        ...

    def close(self) -> None:
        """Let go of sockets and threads. Calling it twice is fine."""
        ...
