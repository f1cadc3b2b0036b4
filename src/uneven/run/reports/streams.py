"""Sees to it that all ranks read the same stream, without a wait of its own where they wait for each other anyway."""

from __future__ import annotations

import numpy as np

from uneven.errors import DataError
from uneven.run.lines.transport import Pending, Transport
from uneven.run.samples.stream_fingerprint import differing


class Streams:
    """Compares the first samples of each epoch, or of the first one only where workers go through epochs apart.

    Args:
        together: whether all workers take the same steps.
    """

    def __init__(self, transport: Transport, together: bool) -> None:
        self._transport, self._together = transport, together
        self._pending: Pending | None = None
        self._epochs = 0

    def begin(self, first: list[float] | None) -> None:
        """An epoch has begun, with the first batch in hand; ``first`` is None where there is an index."""
        self._epochs += 1
        if first is not None and self._transport.size > 1 and (self._together or self._epochs == 1):
            self._pending = self._transport.gather(first)

    def check(self, met: bool) -> None:
        """A step is over.

        Args:
            met: whether all workers have waited for each other in it, so that everybody's word is there.

        Raises:
            DataError: naming the ranks that read another stream than rank 0.
        """
        if self._pending is None or not (met or not self._together):
            return
        rows, self._pending = self._pending.result(), None
        if rows is not None and (others := differing(rows)):
            raise DataError(
                f"the stream or sampler of rank {', '.join(map(str, others))} is not that of rank 0: samples "
                f"differ. Every rank must read the same samples in the same order, and is handed its part of them: do "
                f"not shard the stream by rank, and shuffle with a seed that is the same on all ranks (and set_epoch). "
                f"If they differ only by random augmentation, let each sample carry something that does not, like its "
                f"label"
            )


def check_samples(rows: list[list[float] | None], where: str) -> None:
    """See to it that data sets with an index are the same on all ranks.

    Args:
        rows: by rank, what :func:`uneven.run.samples.stream_fingerprint.spread_samples` says; None where nothing was
        read.

    Raises:
        DataError: naming the ranks whose data set is not rank 0's.
    """
    if None not in rows and (others := differing(np.array(rows))):
        raise DataError(
            f"{where}: the data set of rank {', '.join(map(str, others))} is not that of rank 0: samples with the same "
            f"index differ. Every rank needs the same samples in the same order. If a random split or shuffle made it, "
            f"give that a seed (generator=torch.Generator().manual_seed(0), random_state=0); sort lists of files, as "
            f"os.listdir gives them in any order; and do not divide the data set by rank"
        )
