"""A member's side of the shared stream: its own batches, where they lie."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import torch

from uneven.errors import ConfigError
from uneven.fleet.stream.order import Section, batches
from uneven.fleet.stream.ring import Ring
from uneven.jobs.place import ProcessLine


class Reader:
    """Waits for chunks, hands out batches, and says what is no longer needed.

    Messages: ``("want", chunk, ready)`` when every chunk below the first is needed and those below the second are known
    to be there, which is answered with ``("ready", chunk, where they lie)``; ``("read", chunk)`` when nothing below it
    is needed any more.

    Attributes:
        waited_s: how long it has waited for data.
        ready: chunks below it are there.
    """

    def __init__(self, connection: ProcessLine, ring: Ring) -> None:
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

    def batches(self, section: Section, size: int, *, part: int = 0, parts: int = 1) -> Iterator[list[torch.Tensor]]:
        """The section in batches: for each field a tensor, shape (samples, …), valid until the next is asked for.

        The tensors lie in memory that others read too: writing into them ends the process.

        Args:
            part: of ``parts`` readers who divide the batches, this one takes those with this remainder. It goes past
                the others' at their pace, so that it holds nothing back.
        """
        for number, batch in enumerate(batches(section, size, self._ring.chunk)):
            self.wait_for(batch.needs)
            if number % parts == part:
                yield self.samples(section, batch.start, batch.stop)
            self.free(batch.frees)

    def samples(self, section: Section, start: int, stop: int) -> list[torch.Tensor]:
        """Samples of a section, a tensor of shape (samples, …) for each field; they must be there."""
        return self._ring.batch(section.first * self._ring.chunk + start, stop - start)

    def wait_for(self, chunk: int) -> None:
        """Wait until every chunk below this one is there."""
        if chunk <= self.ready:
            return
        began_s = time.perf_counter()
        self._connection.send(("want", chunk, self.ready))
        _, self.ready, reference = self._connection.recv()
        self._ring.arrived(reference)
        self.waited_s += time.perf_counter() - began_s

    def free(self, chunk: int) -> None:
        """Nothing below this chunk is needed any more."""
        if chunk > self._freed:
            self._freed = chunk
            self._ring.free(chunk)
            self._connection.send(("read", chunk))

    def forget(self) -> None:
        """Know of no chunk any more: the next member in this process may begin much later."""
        self.ready = 0
        self._ring.forget()

    @property
    def chunk(self) -> int:
        """Samples of a whole chunk."""
        return self._ring.chunk


class Shared:
    """A section of the stream as a data set whose samples are asked for in order, a global batch after the other.

    Each worker of a member asks for its part of every global batch. It waits for the whole of it, as the others do, so
    that no worker looks slow for the place of its part; and asking for the next one says that the last one is done.

    Args:
        samples: of every section that will be read.
        batch: samples of a global batch.
    """

    def __init__(self, reader: Reader, samples: int, batch: int) -> None:
        self._reader, self._samples = reader, samples
        self._section: Section | None = None
        self._size = batch

    def __len__(self) -> int:
        return self._samples

    def begin(self, section: Section) -> None:
        """Samples are of this section from now on."""
        assert section.samples == self._samples
        self._section = section

    def end(self) -> None:
        """All of the section has been used."""
        assert self._section is not None
        self._reader.free(self._section.first + self._section.chunks)

    def __getitem__(self, position: int) -> list[torch.Tensor]:
        raise NotImplementedError  # whole batches only, in order

    def __getitems__(self, positions: Sequence[int]) -> list[torch.Tensor]:
        """Samples of one global batch, field by field, without copying where they follow each other."""
        assert self._section is not None
        section, start = self._section, positions[0] // self._size * self._size
        stop = min(start + self._size, self._samples)
        self._reader.free(section.first + start // self._reader.chunk)
        self._reader.wait_for(section.first + -(-stop // self._reader.chunk))
        if positions[-1] - positions[0] == len(positions) - 1:
            return self._reader.samples(section, positions[0], positions[-1] + 1)
        each = [self._reader.samples(section, at, at + 1) for at in positions]  # padding repeats samples
        return [torch.cat(field) for field in zip(*each, strict=True)]
