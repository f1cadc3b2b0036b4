"""Checks that all ranks read the same stream or data set."""

import numpy as np

from uneven.errors import DataError
from uneven.run.lines.transport import Pending, Transport
from uneven.run.samples.stream_fingerprint import differing


class Streams:
    """Compares the first samples of each epoch; of the first epoch only, if workers are in different epochs."""

    def __init__(self, transport: Transport, together: bool) -> None:
        self._transport = transport
        self._together = together  # whether all workers take the same steps
        self._pending: Pending | None = None
        self._epochs = 0

    def begin(self, first: list[float] | None) -> None:
        self._epochs += 1
        if first is not None and self._transport.size > 1 and (self._together or self._epochs == 1):
            self._pending = self._transport.gather(first)

    def check(self, met: bool) -> None:
        """Finish the comparison at the end of a step in which all have ``met``, so that the fingerprints have arrived.

        Raises DataError with the ranks that read another stream than rank 0.
        """
        if self._pending is None or not (met or not self._together):
            return
        rows, self._pending = self._pending.result(), None
        if rows is not None and (others := differing(rows)):
            raise DataError(
                f"the stream or sampler of rank {', '.join(map(str, others))} differs from that of rank 0. Every "
                "rank must read the same samples in the same order, and gets its part of them: do not shard the "
                "stream by rank, and shuffle with the same seed on all ranks (and set_epoch). If only random "
                "augmentation differs, add something constant to each sample, like its label"
            )


def check_samples(rows: list[list[float] | None], where: str) -> None:
    """Raise DataError if data sets differ from rank 0's by the fingerprints in ``rows`` (None: not read)."""
    if None not in rows and (others := differing(np.array(rows))):
        raise DataError(
            f"{where}: the data set of rank {', '.join(map(str, others))} differs from that of rank 0 at the same "
            "index. Every rank needs the same samples in the same order: give random splits and shuffles a seed "
            "(generator=torch.Generator().manual_seed(0), random_state=0), sort lists of files, and do not divide "
            "the data set by rank"
        )
