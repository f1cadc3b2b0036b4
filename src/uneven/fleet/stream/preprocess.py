"""Read, decode and augment chunks of samples into the ring, once for all members."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from uneven.fleet.pure.sections import Chunk, Stream
from uneven.fleet.stream.sample_ring import Layout, RingHandle, arrays_of, check, layout_of
from uneven.runtime.jobs.call import telling
from uneven.runtime.jobs.executor import ProcessLine
from uneven.runtime.jobs.heartbeat import BEAT_S, Heartbeat
from uneven.runtime.states import seed_all


@dataclass(frozen=True, slots=True)
class Source:
    """The data sets, with ``__len__`` and ``__getitem__``, and transforms; all but `train` may be None."""

    train: Any
    validate: Any
    transform: Callable[[Any], Any] | None
    validate_transform: Callable[[Any], Any] | None

    def sample(self, index: int, *, validates: bool) -> Any:
        """Return one prepared sample."""
        data = self.validate if validates else self.train
        change = self.validate_transform if validates else self.transform
        return data[index] if change is None else change(data[index])


def named(index: int | str, *, validates: bool) -> str:
    return f"sample {index} of the {'validation' if validates else 'training'} set"


def preprocess(connection: ProcessLine, source: Source, stream: Stream, handle: RingHandle) -> None:
    """Make the requested chunks until the connection closes.

    Messages in: number, slot of the ring, and whether to report the start of every sample instead of only occasionally.
    Out: ``("made", number, seconds of processor time, reference)``, or ``("failed", text)`` and the end of the process.
    """
    torch.set_num_threads(1)
    ring = handle.open(connection)
    pulse = Heartbeat(connection.send)
    order: tuple[int, npt.NDArray[np.int64]] | None = None
    while True:
        number, slot, each = connection.recv()
        chunk = stream.describe(number)
        pulse.every_s = 0.0 if each else BEAT_S
        began_s = time.process_time()
        if not chunk.validates and (order is None or order[0] != chunk.epoch):
            # The permutation of a large data set is expensive, so it is kept for the chunks of one epoch.
            order = chunk.epoch, stream.order(chunk.epoch)
        indices = range(chunk.start, chunk.start + chunk.size)
        if order is not None and not chunk.validates:
            indices = order[1][chunk.start : chunk.start + chunk.size].tolist()
        _make(connection, pulse, source, stream, chunk, list(indices), ring.layout, ring.slot(slot))
        connection.send(("made", chunk.number, time.process_time() - began_s, ring.made(chunk.number)))


def _make(
    connection: ProcessLine,
    pulse: Heartbeat,
    source: Source,
    stream: Stream,
    chunk: Chunk,
    indices: list[int],
    layout: Layout,
    fields: list[npt.NDArray[Any]],
) -> None:
    # Before each chunk, so that augmentation depends on the chunk only and not on the process.
    seed_all(stream.draws(chunk.number))
    at, where = indices[0], named("{}", validates=chunk.validates)

    def tell(text: str) -> None:
        connection.send(("failed", f"{named(at, validates=chunk.validates)} (epoch {chunk.epoch}):\n{text}"))

    with telling(tell):
        pulse.begin(named(at, validates=chunk.validates))
        for place, index in enumerate(indices):
            at = index
            pulse.beat(where, index)
            arrays = arrays_of(source.sample(index, validates=chunk.validates), "it")
            check(arrays, layout, "it")
            for field, array in zip(fields, arrays, strict=True):
                field[place] = array


def probe(connection: ProcessLine, source: Source) -> None:
    """Prepare the first sample of each set and report its layout.

    Messages: ``("layout", layout, first sample)`` or ``("failed", text)``. It runs in a separate process, like every
    later use of the transform.
    """
    torch.set_num_threads(1)
    pulse = Heartbeat(connection.send)
    what = named(0, validates=False)
    pulse.begin(what)
    with telling(lambda text: connection.send(("failed", f"{what}:\n{text}"))):
        seed_all(0)
        first = source.sample(0, validates=False)
        layout = layout_of(first, "it")
        if source.validate is not None:
            what = named(0, validates=True)
            pulse.begin(what)
            check(arrays_of(source.sample(0, validates=True), "it"), layout, "it")
    connection.send(("layout", layout, [np.array(array) for array in arrays_of(first, "it")]))
    connection.poll(None)  # returns when the other end closes; an earlier exit would look like a death
