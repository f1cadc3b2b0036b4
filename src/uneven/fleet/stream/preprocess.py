"""What a preprocessor does: read, decode and augment a chunk of samples into the ring, once for everybody."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from uneven.fleet.stream.layout import Layout, arrays_of, check, layout_of
from uneven.fleet.stream.order import Chunk, Stream
from uneven.fleet.stream.ring import RingHandle
from uneven.jobs.call import telling
from uneven.jobs.place import ProcessLine
from uneven.jobs.pulse import BEAT_S, Pulse
from uneven.states import seed_all


@dataclass(frozen=True, slots=True)
class Source:
    """Where samples come from.

    Attributes:
        train, validate: data sets with ``__len__`` and ``__getitem__``; the second may be None.
        transform: called with what ``train[i]`` gives; None takes it as it is.
        validate_transform: the same for ``validate``.
    """

    train: Any
    validate: Any
    transform: Callable[[Any], Any] | None
    validate_transform: Callable[[Any], Any] | None

    def sample(self, index: int, *, validates: bool) -> Any:
        """One sample, prepared."""
        data = self.validate if validates else self.train
        change = self.validate_transform if validates else self.transform
        return data[index] if change is None else change(data[index])


def named(index: int | str, *, validates: bool) -> str:
    """A sample in words."""
    return f"sample {index} of the {'validation' if validates else 'training'} set"


def preprocess(connection: ProcessLine, source: Source, stream: Stream, handle: RingHandle) -> None:
    """Make the chunks whose numbers come, until nobody is there any more.

    With each number come the slot of the ring that it is written to, and whether to say of every sample that it is
    begun, and not only now and then.
    Messages: ``("made", number, seconds, where it lies)`` of processor time, or ``("failed", text)``, after which it
    ends.
    """
    torch.set_num_threads(1)
    ring = handle.open(connection)
    pulse = Pulse(connection.send)
    order: tuple[int, npt.NDArray[np.int64]] | None = None
    while True:
        number, slot, each = connection.recv()
        chunk = stream.describe(number)
        pulse.every_s = 0.0 if each else BEAT_S
        began_s = time.process_time()
        if not chunk.validates and (order is None or order[0] != chunk.epoch):
            order = chunk.epoch, stream.order(chunk.epoch)
        indices = range(chunk.start, chunk.start + chunk.size)
        if order is not None and not chunk.validates:
            indices = order[1][chunk.start : chunk.start + chunk.size].tolist()
        _make(connection, pulse, source, stream, chunk, list(indices), ring.layout, ring.slot(slot))
        connection.send(("made", chunk.number, time.process_time() - began_s, ring.made(chunk.number)))


def _make(
    connection: ProcessLine,
    pulse: Pulse,
    source: Source,
    stream: Stream,
    chunk: Chunk,
    indices: list[int],
    layout: Layout,
    fields: list[npt.NDArray[Any]],
) -> None:
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
    """Prepare the first sample of each set, and say what they look like.

    It is done in a process of its own, so that the user's transform runs in no other process than later.
    Messages: ``("layout", layout, first sample)`` or ``("failed", text)``.
    """
    torch.set_num_threads(1)
    pulse = Pulse(connection.send)
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
    connection.poll(None)  # until the other end is closed
