"""Read a member's own batches from the shared stream, without a copy."""

import time
from collections.abc import Iterator, Sequence

import torch

from uneven.errors import ConfigError
from uneven.fleet.pure.sections import Section, batches
from uneven.fleet.stream.sample_ring import Ring
from uneven.runtime.jobs.executor import ProcessLine


class Reader:
    """A member's access to the stream: waits for chunks, yields batches and releases chunks.

    Messages out: ``("want", chunk, ready)`` if every chunk below the first is needed and those below the second are
    known; the answer is ``("ready", chunk, references)``. ``("read", chunk)`` if no reader needs chunks below it.
    """

    def __init__(self, connection: ProcessLine, ring: Ring) -> None:
        self._connection = connection
        self._ring = ring
        self.waited_s = 0.0  # seconds of waiting for data
        self.ready = 0  # chunks below it are available
        self._freed = 0

    def check(self, batch_size: int) -> None:
        """Check that batches of this size fit into the ring at every position. Raises `ConfigError` if they do not."""
        chunk, slots = self._ring.chunk, self._ring.slots
        # In the worst position a batch starts with the last sample of a chunk.
        if batch_size < 1 or -(-(batch_size - 1) // chunk) + 1 > slots:
            raise ConfigError(
                f"a batch of {batch_size} samples does not fit into the shared buffer of {slots * chunk}: take "
                f"smaller batches, or give train(…, buffer={batch_size + 2 * chunk}) or more"
            )

    def batches(self, section: Section, size: int, *, part: int = 0, parts: int = 1) -> Iterator[list[torch.Tensor]]:
        """Yield the section in batches, a tensor of shape (samples, …) per field, valid until the next request.

        The tensors are in read-only shared memory: writing into them ends the process. Of ``parts`` readers that divide
        the batches, this one takes the batches with the remainder `part`.
        """
        for number, batch in enumerate(batches(section, size, self._ring.chunk)):
            self.wait_for(batch.needs)
            if number % parts == part:
                yield self.samples(section, batch.start, batch.stop)
            # Also for batches of other parts, so that this reader holds nothing back.
            self.free(batch.frees)

    def samples(self, section: Section, start: int, stop: int) -> list[torch.Tensor]:
        """Return samples of a section that are available, a tensor of shape (samples, …) per field."""
        return self._ring.batch(section.first * self._ring.chunk + start, stop - start)

    def wait_for(self, chunk: int) -> None:
        """Wait until every chunk below this one is available."""
        if chunk <= self.ready:
            return
        began_s = time.perf_counter()
        self._connection.send(("want", chunk, self.ready))
        _, self.ready, reference = self._connection.recv()
        self._ring.arrived(reference)
        self.waited_s += time.perf_counter() - began_s

    def free(self, chunk: int) -> None:
        """Report that chunks below this one are no longer needed."""
        if chunk > self._freed:
            self._freed = chunk
            self._ring.free(chunk)
            self._connection.send(("read", chunk))

    def forget(self) -> None:
        """Forget all chunks: the next member in this process may start at a much later one."""
        self.ready = 0
        self._ring.forget()

    @property
    def chunk(self) -> int:
        return self._ring.chunk


class Shared:
    """A section of the stream as a data set that is read in order, one global batch after the other.

    Every section has `samples` samples; `batch` is the number in a global batch.
    """

    def __init__(self, reader: Reader, samples: int, batch: int) -> None:
        self._reader = reader
        self._samples = samples
        self._section: Section | None = None
        self._size = batch

    def __len__(self) -> int:
        return self._samples

    def begin(self, section: Section) -> None:
        """Read samples of this section from now on."""
        assert section.samples == self._samples
        self._section = section

    def end(self) -> None:
        """Release the section."""
        assert self._section is not None
        self._reader.free(self._section.first + self._section.chunks)

    def __getitem__(self, position: int) -> list[torch.Tensor]:
        raise NotImplementedError  # whole batches only, in order

    def __getitems__(self, positions: Sequence[int]) -> list[torch.Tensor]:
        """Return samples of one global batch, a tensor of shape (samples, …) per field; a view if consecutive."""
        assert self._section is not None
        section, start = self._section, positions[0] // self._size * self._size
        stop = min(start + self._size, self._samples)
        # A request for this batch means that the last one is done.
        self._reader.free(section.first + start // self._reader.chunk)
        # Each worker waits for the whole global batch, so that no worker looks slow because its part comes last.
        self._reader.wait_for(section.first + -(-stop // self._reader.chunk))
        if positions[-1] - positions[0] == len(positions) - 1:
            return self._reader.samples(section, positions[0], positions[-1] + 1)
        each = [self._reader.samples(section, at, at + 1) for at in positions]  # padding repeats samples
        return [torch.cat(field) for field in zip(*each, strict=True)]
