"""A member's side of the shared stream: its own batches, where they lie."""

from __future__ import annotations

import time
from collections.abc import Iterator
from multiprocessing.connection import Connection

import torch

from uneven.errors import ConfigError
from uneven.fleet.feed_ring import Ring
from uneven.fleet.feed_stream import Section, batches


class Reader:
    """Waits for chunks, hands out batches, and says what is no longer needed.

    Messages: ``("want", chunk)`` when every chunk below it is needed and not known to be there, which is answered with
    ``("ready", chunk)``; ``("read", chunk)`` when nothing below it is needed any more.

    Attributes:
        waited_s: how long it has waited for data.
        ready: chunks below it are there.
    """

    def __init__(self, connection: Connection, ring: Ring) -> None:
        self._connection, self._ring = connection, ring
        self.waited_s = 0.0
        self.ready = 0
        self._freed = 0

    def check(self, batch_size: int) -> None:
        """See that batches of this size can be handed out at all.

        Raises:
            ConfigError: a batch does not fit into the ring, wherever it begins.
        """
        chunk, slots = self._ring.chunk, self._ring.slots
        if batch_size < 1 or -(-(batch_size - 1) // chunk) + 1 > slots:
            raise ConfigError(
                f"a batch of {batch_size} samples does not fit into the shared buffer of {slots * chunk}: take "
                f"smaller batches, or give train(…, buffer={batch_size + 2 * chunk}) or more"
            )

    def batches(self, section: Section, size: int) -> Iterator[list[torch.Tensor]]:
        """The section in batches, field by field; what one yields is valid until the next one is asked for.

        The tensors lie in memory that others read too: writing into them ends the process.
        """
        chunk = self._ring.chunk
        for batch in batches(section, size, chunk):
            if batch.needs > self.ready:
                self._wait(batch.needs)
            yield self._ring.batch(section.first * chunk + batch.start, batch.stop - batch.start)
            if batch.frees > self._freed:
                self._freed = batch.frees
                self._connection.send(("read", batch.frees))

    def _wait(self, chunk: int) -> None:
        began_s = time.perf_counter()
        self._connection.send(("want", chunk))
        _, self.ready = self._connection.recv()
        self.waited_s += time.perf_counter() - began_s
