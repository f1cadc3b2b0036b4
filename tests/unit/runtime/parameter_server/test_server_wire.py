"""What is well formed arrives as it was; nothing else is taken, and every refusal has its reason."""

from __future__ import annotations

import struct
from dataclasses import replace

import numpy as np
import pytest

from uneven.runtime.messages.sockets import FRAME_BYTES
from uneven.runtime.parameter_server.pure.wire import (
    ENTRY_BYTES,
    HEADER_BYTES,
    PIECE_BYTES,
    Entry,
    Kind,
    Message,
    Refusal,
    Refused,
    decode,
    encode,
    piece_lengths,
)
from uneven_bench.server.fuzz import fuzz

PUSH = Message(kind=Kind.PUSH, sequence=1, value=1.0, elements=3, vector=(np.arange(3, dtype=np.float32),))


def raw(message: Message) -> list[bytes]:
    return [bytes(frame) for frame in encode(message)]


@pytest.mark.parametrize("dtype", [0, 1])
@pytest.mark.parametrize("elements", [1, PIECE_BYTES // 8, PIECE_BYTES // 2 + 5])
def test_a_message_arrives_as_it_was(dtype: int, elements: int) -> None:
    kind = (np.float32, np.float64)[dtype]
    flat = np.arange(elements, dtype=kind)
    lengths = piece_lengths(elements, flat.itemsize)
    vector = tuple(np.split(flat, np.cumsum(lengths)[:-1]))
    entries = (Entry(3, True, 2**40, 7), Entry(0, False, 0, 0))
    sent = Message(
        kind=Kind.COPY,
        rank=3,
        number=2**50,
        sequence=9,
        clock=8,
        version=2**33,
        life=2**63 - 1,
        value=-0.25,
        extra=5,
        table=2**32 - 1,
        dtype=dtype,
        elements=elements,
        entries=entries,
        vector=vector,
    )
    got = decode(raw(sent))
    assert replace(got, vector=()) == replace(sent, vector=())
    assert np.array_equal(np.concatenate(got.vector), flat)
    assert max(piece.nbytes for piece in got.vector) <= PIECE_BYTES


def test_a_vector_is_a_view_of_its_frames() -> None:
    frames = raw(PUSH)
    assert np.shares_memory(decode(frames).vector[0], np.frombuffer(frames[2], np.uint8))


FORM = "<4sHBBIIIIQQQQQQQdQdd"
FIELDS = [
    *("magic", "version", "kind", "dtype", "rank", "table", "members", "pad", "number", "sequence", "clock"),
    *("copy", "life", "elements", "size", "value", "extra", "momentum", "grace"),
]


def header(**change: object) -> list[bytes]:
    frames = raw(PUSH)
    fields = dict(zip(FIELDS, struct.unpack(FORM, frames[0]), strict=True)) | change
    return [struct.pack(FORM, *fields.values()), *frames[1:]]


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        ([], Refusal.FRAMES),
        (raw(PUSH)[:1], Refusal.FRAMES),
        (raw(PUSH)[:2], Refusal.FRAMES),
        ([*raw(PUSH), b""], Refusal.FRAMES),
        ([b"", *raw(PUSH)[1:]], Refusal.HEADER),
        ([raw(PUSH)[0] + b"x", *raw(PUSH)[1:]], Refusal.HEADER),
        (header(magic=b"unev"), Refusal.MAGIC),
        (header(version=2), Refusal.VERSION),
        (header(kind=0), Refusal.KIND),
        (header(pad=1), Refusal.KIND),
        (header(grace=1.0), Refusal.KIND),
        (header(momentum=float("inf"), kind=int(Kind.MOVEMENT)), Refusal.VALUE),
        (header(dtype=2), Refusal.DTYPE),
        (header(value=float("nan")), Refusal.VALUE),
        (header(members=1), Refusal.ENTRIES),
        (header(members=2**32 - 1), Refusal.ENTRIES),
        ([raw(PUSH)[0], b"x", raw(PUSH)[2]], Refusal.ENTRIES),
        (header(elements=2**63), Refusal.BYTES),
        (header(size=2**63), Refusal.BYTES),
        (header(elements=0, size=0), Refusal.BYTES),
        (header(kind=int(Kind.PULL)), Refusal.BYTES),
        (header(dtype=1), Refusal.BYTES),
        (header(elements=2, size=8), Refusal.PIECES),
        ([*raw(PUSH)[:2], b"x" * 11], Refusal.PIECES),
    ],
)
def test_what_is_malformed_is_refused(frames: list[bytes], reason: Refusal) -> None:
    with pytest.raises(Refused) as refused:
        decode(frames)
    assert refused.value.reason is reason


def test_lengths_are_as_documented() -> None:
    assert (HEADER_BYTES, ENTRY_BYTES) == (112, 24)


def test_thousands_of_malformed_messages_change_nothing() -> None:
    counts = fuzz(3_000, seed=1)
    assert sum(counts.values()) == 3_000
    assert len(counts) >= 15  # reasons that were seen


def test_a_frame_has_room_for_a_piece_and_its_encryption() -> None:
    assert FRAME_BYTES == 2 * PIECE_BYTES
