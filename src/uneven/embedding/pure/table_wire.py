"""Messages between a worker and a shard of tables: frames of fixed layout, raw numbers, no pickle.

::

    frame 0      header, 80 bytes, little-endian (below)
    frame 1      text, of the length in the header: specifications, paths, counts
    frame 2      one entry of 32 bytes for each group of bags
    frame 3 …    for each group: ids, lengths, weights and values, as its entry specifies, each in pieces of PIECE_BYTES

A worker on the shard's machine may place the arrays of a gradient in memory that both share, instead of frames 3 ….
The header and the entries determine every length in a message. A message with another length is rejected as a whole,
with a reason, as in :mod:`uneven.runtime.parameter_server.pure.wire`.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from uneven.embedding.pure.narrow_rows import SCALE_BYTES
from uneven.embedding.pure.row_optimizers import CACHE_LINE, Bags
from uneven.runtime.parameter_server.pure.wire import PIECE_BYTES, Refusal, Refused

MAGIC = b"UNET"
VERSION = 3
MOST_GROUPS = 1 << 12
MOST_NUMBERS = 1 << 30  # in one array: a malformed entry must not allocate all memory
MOST_TEXT = 1 << 22
LAST_NUMBER = (1 << 64) - 1  # of a message

_HEADER = struct.Struct("<4sHBBIIQQQQQQQIII")
_ENTRY = struct.Struct("<IIQQII")
HEADER_BYTES = _HEADER.size
ENTRY_BYTES = _ENTRY.size
WIRES = ("float32", "bfloat16", "float16", "int8")
"""Types of values; each row of int8 ends with its scale, a float32."""
_LENGTHS, _WEIGHTS, _WIDE = 1, 2, 16
_VALUES = {flag: np.dtype(code) for flag, code in ((4, "<f4"), (8, "<u2"), (32, "<f2"), (64, "i1"))}  # as WIRES
_ALL_VALUES = sum(_VALUES)


class Say(IntEnum):
    """The kind of a message. Workers send kinds below 32, shards the others."""

    OPEN = 1  # connect; text: the shard specification
    LOOKUP = 2  # request the sums of bags
    GRADIENT = 3  # of bags, with their ids: one step on their rows
    WRITE = 4  # set rows by id; weights: Adagrad's sums, which are reset without them
    PING = 5
    FLUSH = 6  # answered when all present workers have sent the same flush: all earlier updates are then applied
    STATS = 7
    SAVE = 8  # write all rows to the folder in the text
    LOAD = 9  # read rows from it
    LEAVE = 10
    READ = 11  # as LOOKUP, but not counted as a sighting
    NAMES = 12  # request the ids that have rows; text: number of the group
    SUMS = 13  # as READ, of Adagrad's sums; width 1
    WELCOME = 33  # connected; the worker's updates up to this sequence are applied
    WHO = 34  # the shard has restarted: send OPEN again
    POOLED = 35
    PONG = 36  # the worker's updates up to this sequence are applied
    FLUSHED = 37
    TOLD = 38  # statistics as text
    DONE = 39  # saved or loaded; a text is the error
    REFUSED = 40
    NAMED = 41  # the ids


READER = 1 << 31
"""Ranks from here on are readers: no worker waits for them, and they cannot change anything."""

READING = frozenset({Say.OPEN, Say.PING, Say.READ, Say.STATS, Say.LEAVE})
"""Kinds that a shard accepts from a reader. It welcomes one with the shard's specification as text."""

CHANGING = frozenset({Say.GRADIENT, Say.WRITE})
"""Kinds that change rows, each message with a sequence number."""

_WITH_IDS = frozenset({Say.LOOKUP, Say.READ, Say.SUMS, Say.GRADIENT, Say.WRITE, Say.NAMED})
_WITH_VALUES = frozenset({Say.GRADIENT, Say.WRITE, Say.POOLED})


@dataclass(frozen=True, slots=True, kw_only=True)
class TableMessage:
    """One message."""

    kind: Say
    rank: int = 0  # the worker that sends or receives it
    number: int = 0  # of the worker's request; a reply repeats it
    sequence: int = 0  # number of the worker's update
    life: int = 0  # of the shard; each start has another one
    version: int = 0  # updates of all workers in the rows; for a gradient, at its lookup
    meeting: int = 0  # number of the flush, or of the save
    table: int = 0  # fingerprint of the shard's specification
    wire: str = WIRES[0]  # for a lookup: the type of the answer's values
    place: int | None = None  # of a gradient's arrays in shared memory, in bytes; None if they are in the message
    # lookups, read: since the worker's last gradient it has read this many times, and this many rows, in shared memory
    lookups: int = 0
    read: int = 0
    text: str = ""
    bags: tuple[Bags, ...] = ()


def encode(message: TableMessage) -> list[Any]:
    """Return the frames of a message; array frames are views, not copies."""
    text = message.text.encode()
    m = message
    header = _HEADER.pack(
        MAGIC,
        VERSION,
        m.kind,
        WIRES.index(m.wire),
        m.rank,
        m.table,
        m.number,
        m.sequence,
        m.life,
        m.version,
        m.meeting,
        0 if m.place is None else m.place + 1,
        m.read,
        m.lookups,
        len(text),
        len(m.bags),
    )
    frames: list[Any] = [header, text, b"".join(_entry(one) for one in m.bags)]
    for array in arrays_of(m.bags) if m.place is None else ():
        frames += _cut(array)
    return frames


def arrays_of(bags: Sequence[Bags]) -> list[npt.NDArray[Any]]:
    """Return the arrays of a message in their order."""
    found = ((one.ids, one.lengths, one.weights, one.values) for one in bags)
    return [array for arrays in found for array in arrays if array is not None]


@dataclass(slots=True)
class PlacedArrays:
    """Arrays one after the other in ``memory``, shape (bytes,) uint8, from a place on; each begins a cache line."""

    memory: npt.NDArray[np.uint8]
    place: int

    def next(self, count: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """Return the next array, shape (count,); raise :class:`Refused` if the memory is too short."""
        start = -(-self.place // CACHE_LINE) * CACHE_LINE
        self.place = start + count * dtype.itemsize
        if self.place > len(self.memory):
            raise Refused(Refusal.BYTES)
        return self.memory[start : self.place].view(dtype)


def _entry(one: Bags) -> bytes:
    flags = _LENGTHS * (one.lengths is not None) | _WEIGHTS * (one.weights is not None)
    if one.values is not None:
        flags |= next(flag for flag, dtype in _VALUES.items() if one.values.dtype == dtype)
    if one.ids is not None and one.ids.dtype == np.int64:
        flags |= _WIDE
    return _ENTRY.pack(one.group, one.width, 0 if one.ids is None else len(one.ids), one.count, one.each, flags)


def _cut(array: npt.NDArray[Any]) -> Iterator[Any]:
    flat = array.reshape(-1)
    each = PIECE_BYTES // flat.itemsize
    return (flat[start : start + each] for start in range(0, len(flat), each))


def decode(
    frames: Sequence[Any], memory_of: Callable[[int], npt.NDArray[np.uint8] | None] = lambda rank: None
) -> TableMessage:
    """Parse the frames of a message; one-piece arrays are views of them. Raises :class:`Refused` if it is malformed.

    ``memory_of``: worker → the memory that it shares with this shard, or None."""
    if len(frames) < 3:
        raise Refused(Refusal.FRAMES)
    header = memoryview(frames[0])
    if header.nbytes != HEADER_BYTES:
        raise Refused(Refusal.HEADER)
    magic, version, kind, wire, rank, table, number, sequence, life, seen, meeting, place, *read, text, groups = (
        _HEADER.unpack(header)
    )
    if magic != MAGIC:
        raise Refused(Refusal.MAGIC)
    if version != VERSION:
        raise Refused(Refusal.VERSION)
    if kind not in _KINDS or wire >= len(WIRES) or (kind != Say.GRADIENT and (place or any(read))):
        raise Refused(Refusal.KIND)
    what = Say(kind)
    arrays: Iterator[memoryview] | PlacedArrays = (memoryview(one) for one in frames[3:])
    if place:
        memory = memory_of(rank)
        if memory is None or len(frames) > 3:
            raise Refused(Refusal.FRAMES)
        arrays = PlacedArrays(memory, place - 1)
    return TableMessage(
        kind=what,
        rank=rank,
        number=number,
        sequence=sequence,
        life=life,
        version=seen,
        meeting=meeting,
        table=table,
        wire=WIRES[wire],
        place=place - 1 if place else None,
        read=read[0],
        lookups=read[1],
        text=_text(memoryview(frames[1]), text),
        bags=_bags(what, memoryview(frames[2]), groups, arrays),
    )


_KINDS = frozenset(int(kind) for kind in Say)


def _text(frame: memoryview, length: int) -> str:
    if length > MOST_TEXT or frame.nbytes != length:
        raise Refused(Refusal.BYTES)
    try:
        return bytes(frame).decode()
    except UnicodeDecodeError:
        raise Refused(Refusal.BYTES) from None


_Arrays = Iterator[memoryview] | PlacedArrays


def _bags(kind: Say, entries: memoryview, groups: int, arrays: _Arrays) -> tuple[Bags, ...]:
    if groups > MOST_GROUPS or entries.nbytes != groups * ENTRY_BYTES:
        raise Refused(Refusal.ENTRIES)
    if groups and kind not in _WITH_IDS | _WITH_VALUES:
        raise Refused(Refusal.ENTRIES)
    found = tuple(_one(kind, fields, arrays) for fields in _ENTRY.iter_unpack(entries))
    if not isinstance(arrays, PlacedArrays) and next(arrays, None) is not None:
        raise Refused(Refusal.FRAMES)
    return found


def _one(kind: Say, fields: tuple[int, ...], frames: _Arrays) -> Bags:
    group, width, ids, count, each, flags = fields
    with_ids, with_values = kind in _WITH_IDS, kind in _WITH_VALUES
    values = flags & _ALL_VALUES
    if flags > 127 or values not in (0, *_VALUES) or bool(values) != with_values:
        raise Refused(Refusal.DTYPE)
    # 19: lengths, weights or wide ids
    if not width or max(ids, each, count * width) > MOST_NUMBERS or (not with_ids and (ids or each or flags & 19)):
        raise Refused(Refusal.BYTES)
    ragged = bool(flags & _LENGTHS)
    if with_ids and (ragged == bool(each) or (not ragged and ids != count * each) or (kind is Say.WRITE and each != 1)):
        raise Refused(Refusal.BYTES)
    wanted = _array(frames, ids, np.dtype("<i8" if flags & _WIDE else "<i4")) if with_ids else None
    lengths = _array(frames, count, np.dtype("<i4")) if ragged else None
    if lengths is not None and (int(lengths.sum(dtype=np.int64)) != ids or (count and lengths.min() < 0)):
        raise Refused(Refusal.PIECES)
    weights = _array(frames, ids, np.dtype("<f4")) if flags & _WEIGHTS else None
    rows = None
    if values:
        across = width + SCALE_BYTES * (_VALUES[values].itemsize == 1)
        rows = _array(frames, count * across, _VALUES[values], checked=False).reshape(count, across)
    return Bags(group, width, count, wanted, each, lengths, weights, rows)


def _array(frames: _Arrays, count: int, dtype: np.dtype[Any], *, checked: bool = True) -> npt.NDArray[Any]:
    """Return the next array, which must have exactly as many pieces as its length requires."""
    if isinstance(frames, PlacedArrays):
        found = frames.next(count, dtype)
        return found.copy() if checked else found  # the worker could change ids after their check
    left, pieces = count * dtype.itemsize, []
    while left:
        piece, due = next(frames, None), min(left, PIECE_BYTES)
        if piece is None:
            raise Refused(Refusal.FRAMES)
        if piece.nbytes != due:
            raise Refused(Refusal.PIECES)
        pieces.append(np.frombuffer(piece, dtype))
        left -= due
    if len(pieces) == 1:
        return pieces[0]
    return np.concatenate(pieces) if pieces else np.empty(0, dtype)
