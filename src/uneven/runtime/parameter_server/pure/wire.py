"""The wire format between a worker and a shard: frames of fixed layout, raw numbers, no pickle.

::

    frame 0      header, 112 bytes, little-endian (below)
    frame 1      one entry of 24 bytes for each member that the header announces; empty without any
    frame 2 …    the vector, in pieces of exactly PIECE_BYTES; the last one may be shorter

Pieces are encrypted, sent and decrypted one after the other, so both ends work at the same time. The header determines
every length, and a message with any other length is rejected as a whole.
"""

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
"""Numbers of one dtype in pieces that are never changed in place, so a reply needs no copy."""

MAGIC = b"UNEV"
VERSION = 1
PIECE_BYTES = 4 << 20
"""Small enough that both ends work at the same time, large enough for the cost per piece (measured by bench server)."""
MOST_BYTES = 1 << 36  # the largest size of one vector. A header that announces more is rejected.
MOST_ENTRIES = 1 << 16

DTYPES: tuple[np.dtype[Any], ...] = (np.dtype("<f4"), np.dtype("<f8"))

_HEADER = struct.Struct("<4sHBBIIIIQQQQQQQdQdd")
_ENTRY = struct.Struct("<IIQQ")
HEADER_BYTES = _HEADER.size
ENTRY_BYTES = _ENTRY.size


class Kind(IntEnum):
    """The kinds of messages. A worker sends those below 32, a shard the others."""

    HELLO = 1  # my identity, my table, the version of the copy that I hold
    OFFER = 2  # the copy that I hold
    PUSH = 3  # add this, scaled, to the copy; with ``extra`` − 1 as the clock of a pull that follows immediately
    PULL = 4  # send the copy when the least clock has reached this one
    EXCHANGE = 5  # pull copy and replica towards each other
    GRADIENT = 6  # one contribution to the mean of a step
    RESULT = 7  # send the mean of a step
    PING = 8
    LEAVE = 9
    MEET = 10  # send all the copy when all present have come to this meeting; waiting here delays no other worker
    BURY = 11  # the member ``extra`` has failed: reject its further messages, and report its updates in the copy
    MOVEMENT = 12  # my movement in the open merge; answered with the copy when that closes
    ASK = 13  # send the velocity of the outer steps
    KEEP = 14  # start outer steps with this velocity, if there has been none yet
    FOLLOW = 15  # send the copy when the others' least clock has reached this one, or their epoch differs
    WELCOME = 33  # you are known; the copy has your updates up to this number; with ``extra`` your own copy is a stray
    WANT = 34  # send me your copy
    WHO = 35  # I have been restarted: greet me
    APPLIED = 36
    COPY = 37  # the copy as it is
    BEFORE = 38  # the copy before your exchange, which determines the difference
    MEAN = 39  # of a step
    GONE = 40  # that step's mean is no longer kept
    GAP = 41  # an earlier update of yours is missing: continue from this sequence number
    PONG = 42
    MISSING = 43  # the wait timed out; these members are behind
    REFUSED = 44
    KEPT = 46  # the velocity of the outer steps
    BURIED = 45  # with the final entry of the failed member
    FOLLOWED = 47  # the copy, with that clock, and 1 + that epoch; 0 if all others wait in a meeting or have left


CARRYING = frozenset(
    {Kind.OFFER, Kind.PUSH, Kind.EXCHANGE, Kind.GRADIENT, Kind.MOVEMENT, Kind.KEEP, Kind.COPY, Kind.BEFORE, Kind.MEAN,
     Kind.KEPT, Kind.FOLLOWED}
)  # fmt: skip
"""The messages with a vector. HELLO has none, but announces the length of the sender's."""

CHANGING = frozenset({Kind.PUSH, Kind.EXCHANGE, Kind.GRADIENT, Kind.MOVEMENT})
"""The messages that change the shard's state, each with a sequence number."""


class Refusal(Enum):
    """The reasons to reject a message."""

    FRAMES = "number of frames"
    HEADER = "length of the header"
    MAGIC = "not of this protocol"
    VERSION = "another version of the protocol"
    KIND = "unknown kind"
    DTYPE = "unknown kind of numbers"
    VALUE = "a value that is not finite"
    ENTRIES = "length of the entries"
    BYTES = "bytes do not fit the elements"
    PIECES = "lengths of the pieces"
    DIRECTION = "only a shard sends that"
    RANK = "not a member of this run"
    TABLE = "another table of tensors"
    SEQUENCE = "a sequence number of zero"
    SCALE = "a scale out of range"
    QUORUM = "a quorum that cannot be reached"
    STEP = "an impossible step"
    UNASKED = "an offer that was not asked for"
    ROW = "a row that is not on this shard"
    SPEC = "impossible tables"
    READER = "not for a reader"


class Refused(ValueError):
    """The message is rejected; ``reason`` is the key of its count."""

    def __init__(self, reason: Refusal) -> None:
        super().__init__(reason.value)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Entry:
    """A copy's state of one member: it includes updates up to ``sequence``; the last one ended step ``clock`` − 1."""

    rank: int
    here: bool
    sequence: int
    clock: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message; ``shard`` and ``link`` define the fields of each kind."""

    kind: Kind
    rank: int = 0  # the worker that it is from or for
    number: int = 0  # of the request, counted by the worker; a reply has that of its request
    sequence: int = 0  # of the sender's updates
    clock: int = 0  # finished steps, or a step
    version: int = 0  # updates in the copy; for a push with a pull, the longest wait of the pull, in ms
    life: int = 0  # of the shard; it changes with each start
    value: float = 0.0  # scale, α, weight or seconds; for HELLO, how long the sender waits for an answer
    extra: int = 0  # quorum, number of the parked request, newest step, 1 + the clock of a push's pull, or 1 + an epoch
    # momentum, grace: for a movement: μ of the outer step, and the additional wait of a quorum, as a part of the
    # time that its first member has waited; 0 in all other messages
    momentum: float = 0.0
    grace: float = 0.0
    table: int = 0  # fingerprint of the tensors and their division
    dtype: int = 0  # index in ``DTYPES``
    elements: int = 0  # of the vector; for HELLO, of the sender's
    entries: tuple[Entry, ...] = ()
    vector: Vector = ()


def piece_lengths(elements: int, itemsize: int) -> list[int]:
    each = PIECE_BYTES // itemsize
    whole, rest = divmod(elements, each)
    return [each] * whole + ([rest] if rest else [])


def encode(message: Message) -> list[Any]:
    """Return the frames of a message; those of the vector share its memory."""
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
    """Return the message in some frames, whose memory its vector shares. Raises Refused if it is malformed."""
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
