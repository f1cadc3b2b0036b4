"""What travels between a worker and a shard: frames of fixed layout, raw numbers, nothing pickled. Pure.

::

    frame 0      header, 112 bytes, little-endian (below)
    frame 1      one entry of 24 bytes for each member that the header announces; empty where it announces none
    frame 2 …    the vector, in pieces of exactly PIECE_BYTES; the last one may be shorter

Pieces are encrypted, sent and decrypted one after the other, so that both ends work at the same time. Every length in a
message follows from its header, and a message in which one does not is refused as a whole, with the reason.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]
Vector: TypeAlias = tuple[Array, ...]
"""Numbers of one kind in pieces, none of which is ever changed in place: a reply needs no copy of its own."""

MAGIC = b"UNEV"
VERSION = 1
PIECE_BYTES = 4 << 20
"""Small enough for both ends to work at once, large enough for what each piece costs (measured by bench server)."""
MOST_BYTES = 1 << 36
"""The largest size of one vector. A header that announces more is not believed."""
MOST_ENTRIES = 1 << 16

DTYPES: tuple[np.dtype[Any], ...] = (np.dtype("<f4"), np.dtype("<f8"))

_HEADER = struct.Struct("<4sHBBIIIIQQQQQQQdQdd")
_ENTRY = struct.Struct("<IIQQ")
HEADER_BYTES = _HEADER.size
ENTRY_BYTES = _ENTRY.size


class Kind(IntEnum):
    """What a message is. Below 32 a worker says it, above a shard."""

    HELLO = 1  # who I am, which table I have, the version of the copy that I hold
    OFFER = 2  # the copy that I hold
    PUSH = 3  # add this, scaled, to the copy; with ``extra`` − 1 as the clock of a pull that follows at once
    PULL = 4  # give me the copy when the least clock has come so far
    EXCHANGE = 5  # pull copy and replica towards each other
    GRADIENT = 6  # one contribution to the mean of a step
    RESULT = 7  # give me the mean of a step
    PING = 8
    LEAVE = 9
    MEET = 10  # give everybody the copy when all who are here have met so often; who waits here keeps nobody waiting
    BURY = 11  # the member named by ``extra`` is gone: take nothing more from it, and say what of it is in the copy
    MOVEMENT = 12  # what I have moved, for the merge that is open; answered with the copy when that is over
    ASK = 13  # what do outer steps keep?
    KEEP = 14  # let them go on from that, if there has been none yet
    FOLLOW = 15  # give me the copy when the others' least clock has come so far, or they are in another epoch
    WELCOME = 33  # you are known; your updates up to this number are in the copy; with ``extra`` yours is a stray
    WANT = 34  # offer me your copy
    WHO = 35  # I have been started again since: greet me
    APPLIED = 36
    COPY = 37  # the copy as it is
    BEFORE = 38  # the copy as it was before your exchange, from which the difference follows
    MEAN = 39  # of a step
    GONE = 40  # that step's mean is no longer kept
    GAP = 41  # an earlier update of yours has not arrived: go on from this sequence number
    PONG = 42
    MISSING = 43  # I waited as long as you asked; these members are behind
    REFUSED = 44
    KEPT = 46  # what outer steps keep
    BURIED = 45  # with the entry of the member that was buried, which stays as it is
    FOLLOWED = 47  # the copy, with that clock, and 1 + that epoch; 0 where all others wait in a meeting or have left


CARRYING = frozenset(
    {Kind.OFFER, Kind.PUSH, Kind.EXCHANGE, Kind.GRADIENT, Kind.MOVEMENT, Kind.KEEP, Kind.COPY, Kind.BEFORE, Kind.MEAN,
     Kind.KEPT, Kind.FOLLOWED}
)  # fmt: skip
"""Messages with a vector. The others carry none, though HELLO says how long the sender's is."""

CHANGING = frozenset({Kind.PUSH, Kind.EXCHANGE, Kind.GRADIENT, Kind.MOVEMENT})
"""Messages that change the shard's state, each with a sequence number."""


class Refusal(Enum):
    """Why a message was not taken."""

    FRAMES = "number of frames"
    HEADER = "length of the header"
    MAGIC = "not of this protocol"
    VERSION = "another version of the protocol"
    KIND = "unknown kind"
    DTYPE = "unknown kind of numbers"
    VALUE = "a value that is no finite number"
    ENTRIES = "length of the entries"
    BYTES = "bytes do not fit the elements"
    PIECES = "lengths of the pieces"
    DIRECTION = "only a shard says that"
    RANK = "no member of this run"
    TABLE = "another table of tensors"
    SEQUENCE = "a sequence number of zero"
    SCALE = "a scale out of range"
    QUORUM = "a quorum that cannot be reached"
    STEP = "a step that nobody can be in"
    UNASKED = "an offer that was not asked for"
    ROW = "a row that is not here"
    SPEC = "tables that cannot be"


class Refused(ValueError):
    """A message that is not taken.

    Attributes:
        reason: counted by this.
    """

    def __init__(self, reason: Refusal) -> None:
        super().__init__(reason.value)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Entry:
    """What a copy holds of one member: updates up to ``sequence``, the last of which ended its step ``clock`` − 1."""

    rank: int
    here: bool
    sequence: int
    clock: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message; which field means what is said where it is made (``shard``, ``link``).

    Attributes:
        rank: the worker that it is from or for.
        number: of the request, counted by the worker; a reply has that of its request.
        sequence: of the sender's updates.
        clock: finished steps, or a step.
        version: updates in the copy; of a push that pulls, how long the pull may wait, in ms.
        life: of the shard; another one after each start.
        value: scale, α, weight or seconds; of HELLO, how long the sender waits for an answer.
        momentum, grace: of a movement: μ of the outer step, and how much longer a quorum waits for others, as a part of
            the time that its first has waited; 0 in all other messages.
        extra: quorum, the number of what is parked, the newest step, 1 + the clock of a push's pull, or 1 + an epoch.
        table: fingerprint of the tensors and how they are divided.
        dtype: place in ``DTYPES``.
        elements: of the vector; of HELLO, what the sender's has.
    """

    kind: Kind
    rank: int = 0
    number: int = 0
    sequence: int = 0
    clock: int = 0
    version: int = 0
    life: int = 0
    value: float = 0.0
    extra: int = 0
    momentum: float = 0.0
    grace: float = 0.0
    table: int = 0
    dtype: int = 0
    elements: int = 0
    entries: tuple[Entry, ...] = ()
    vector: Vector = ()


def piece_lengths(elements: int, itemsize: int) -> list[int]:
    """Elements of each piece of a vector."""
    each = PIECE_BYTES // itemsize
    whole, rest = divmod(elements, each)
    return [each] * whole + ([rest] if rest else [])


def encode(message: Message) -> list[Any]:
    """Frames of a message; those of the vector are its own memory."""
    size = sum(piece.nbytes for piece in message.vector)
    header = _HEADER.pack(
        MAGIC,
        VERSION,
        message.kind,
        message.dtype,
        message.rank,
        message.table,
        len(message.entries),
        0,
        message.number,
        message.sequence,
        message.clock,
        message.version,
        message.life,
        message.elements,
        size,
        message.value,
        message.extra,
        message.momentum,
        message.grace,
    )
    entries = b"".join(_ENTRY.pack(one.rank, one.here, one.sequence, one.clock) for one in message.entries)
    return [header, entries, *message.vector]


def decode(frames: Sequence[Any]) -> Message:
    """The message in some frames, whose vector is a view of them.

    Args:
        frames: bytes or anything with a buffer.

    Raises:
        Refused: it is malformed; nothing of it has been believed.
    """
    if len(frames) < 2:
        raise Refused(Refusal.FRAMES)
    header = memoryview(frames[0])
    if header.nbytes != HEADER_BYTES:
        raise Refused(Refusal.HEADER)
    fields = _HEADER.unpack(header)
    magic, version, kind, dtype, rank, table, members, pad = fields[:8]
    number, sequence, clock, copy, life, elements, size, value, extra, momentum, grace = fields[8:]
    if magic != MAGIC:
        raise Refused(Refusal.MAGIC)
    if version != VERSION:
        raise Refused(Refusal.VERSION)
    if kind not in _KINDS or pad or ((momentum or grace) and kind != Kind.MOVEMENT):
        raise Refused(Refusal.KIND)
    if dtype >= len(DTYPES):
        raise Refused(Refusal.DTYPE)
    if not (math.isfinite(value) and math.isfinite(momentum) and math.isfinite(grace)):
        raise Refused(Refusal.VALUE)
    what = Kind(kind)
    return Message(
        kind=what,
        rank=rank,
        number=number,
        sequence=sequence,
        clock=clock,
        version=copy,
        life=life,
        value=value,
        extra=extra,
        momentum=momentum,
        grace=grace,
        table=table,
        dtype=dtype,
        elements=elements,
        entries=_entries(memoryview(frames[1]), members),
        vector=_vector(frames[2:], what, DTYPES[dtype], elements, size),
    )


_KINDS = frozenset(int(kind) for kind in Kind)


def _entries(frame: memoryview, members: int) -> tuple[Entry, ...]:
    if members > MOST_ENTRIES or frame.nbytes != members * ENTRY_BYTES:
        raise Refused(Refusal.ENTRIES)
    found = [Entry(rank, bool(here), seq, clock) for rank, here, seq, clock in _ENTRY.iter_unpack(frame)]
    if len({one.rank for one in found}) != len(found):
        raise Refused(Refusal.ENTRIES)
    return tuple(found)


def _vector(frames: Sequence[Any], kind: Kind, dtype: np.dtype[Any], elements: int, size: int) -> Vector:
    carried = elements if kind in CARRYING else 0
    if size > MOST_BYTES or size != carried * dtype.itemsize or (kind in CARRYING and not elements):
        raise Refused(Refusal.BYTES)
    lengths = piece_lengths(carried, dtype.itemsize)
    if len(frames) != len(lengths):
        raise Refused(Refusal.FRAMES)
    views = [memoryview(frame) for frame in frames]
    if any(view.nbytes != length * dtype.itemsize for view, length in zip(views, lengths, strict=True)):
        raise Refused(Refusal.PIECES)
    return tuple(np.frombuffer(view, dtype) for view in views)
