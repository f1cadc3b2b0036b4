"""Serialization of entries.

::

    header   48 bytes, little-endian (below)
    places   by the index of the header: none, 8 or 4 bytes each, gaps of 2 bytes, a bit for each entry of the vector,
             or 12 bits in a chunk
    values   8, 4 or 2 bytes each; or 2 bits each, behind two magnitudes of 4 bytes for each chunk

The header determines every length. A message is rejected as a whole, with a reason, if it has another length, or places
that do not ascend or are outside of the vector.
"""

import math
import struct
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from uneven.errors import PeerError
from uneven.policy.select.picked import HALF, QUARTER, WHOLE, Array, ChunkRows, Picked, from_bfloat16, to_bfloat16

MAGIC, VERSION = b"UNES", 1
_HEADER = struct.Struct("<4sBBBBQQQdII")
HEADER_BYTES = _HEADER.size
_PLACES = struct.Struct("<BQ")
_FAR = 65_535
MOST_ENTRIES = 1 << 34  # a malformed header must not allocate all memory


class Index(IntEnum):
    """The encoding of places."""

    ALL = 0  # every entry travels
    LONG = 1  # 8 bytes each, as in Gaia's released code: 12 bytes an entry with its value
    PLAIN = 2  # 4 bytes each: 8 bytes an entry
    GAPS = 3  # 2 bytes: the distance from the last place; 0 skips 65,535 entries: 4 bytes an entry with bfloat16
    BITMAP = 4  # one bit for each entry of the vector
    CHUNKS = 5  # 12 bits in a chunk: 1.75 bytes an entry with a value of 2 bits


SHORT = (Index.GAPS, Index.PLAIN, Index.LONG, Index.BITMAP)


def shortest(picked: Picked, whole: Array, forms: tuple[Index, ...] = SHORT) -> Picked:
    """Return the entries, or a copy of the whole vector (n,) they come from if that is not longer."""
    if picked.places is None or packed_bytes(picked, forms) < HEADER_BYTES + whole.nbytes:
        return picked
    return Picked(len(whole), None, whole.copy())


def packed_bytes(picked: Picked, forms: tuple[Index, ...] = SHORT) -> int:
    """Return the length of :func:`pack`'s message."""
    return HEADER_BYTES + _index_bytes(_index(picked, forms), picked) + _value_bytes(picked)


def pack(picked: Picked, clock: int, weight: float = 0.0, forms: tuple[Index, ...] = SHORT) -> bytes:
    """Serialize entries with the sender's clock (steps) and weight (samples), in the shortest of ``forms``."""
    index = _index(picked, forms)
    places = b"" if picked.places is None else _places_out(index, picked)
    width = picked.values.dtype.itemsize
    chunk, each = (picked.rows.chunk, picked.rows.each) if picked.rows is not None else (0, 0)
    header = _HEADER.pack(
        MAGIC, VERSION, index, picked.bits, width, clock, picked.size, _words(index, picked), weight, chunk, each
    )
    return b"".join((header, places, _values_out(picked)))


class Unpacked(NamedTuple):
    """A parsed message; see :func:`pack`."""

    clock: int
    weight: float
    picked: Picked


def unpack(message: bytes | memoryview, size: int, width: int) -> Unpacked:
    """Parse a message of :func:`pack` for a vector of ``size`` numbers of ``width`` bytes (4 or 8).

    Raises:
        PeerError: the message is inconsistent, or does not fit the vector.
    """
    buffer = memoryview(message)
    if len(buffer) < HEADER_BYTES:
        raise _damaged(f"it has {len(buffer)} bytes, fewer than a header of {HEADER_BYTES}")
    magic, version, kind, bits, sent, clock, entries, words, weight, chunk, each = _HEADER.unpack(buffer[:HEADER_BYTES])
    if (magic, version) != (MAGIC, VERSION):
        raise _damaged(f"it begins with {magic!r}, version {version}, and not with {MAGIC!r}, version {VERSION}")
    if entries != size or sent != width:
        raise _damaged(f"it is of a vector of {entries} numbers of {sent} bytes; here it has {size} of {width}")
    if kind not in list(Index) or bits not in (WHOLE, HALF, QUARTER) or entries > MOST_ENTRIES or words > 2 * entries:
        raise _damaged(f"its header announces places of kind {kind}, {bits} bits, {words} of {entries} entries")
    if not 0 <= weight < math.inf:
        raise _damaged(f"{weight} samples went into it")
    index, body = Index(kind), buffer[HEADER_BYTES:]
    rows = _rows(index, entries, words, chunk, each)
    if bits == QUARTER and rows is None:
        raise _damaged("it has values of 2 bits without chunks")
    length = _length(index, words, entries)
    if len(body) < length:
        raise _damaged(f"it has {len(body)} bytes for {words} places, which take {length}")
    places = _places_in(index, body[:length], words, entries, rows)
    count = entries if places is None else len(places)
    values, expected = body[length:], _values_length(count, bits, width, rows)
    if len(values) != expected:
        raise _damaged(f"it has {len(values)} bytes for {count} values, which take {expected}")
    return Unpacked(clock, weight, Picked(entries, places, _values_in(values, count, bits, width, rows), bits, rows))


def pack_places(picked: Picked) -> bytes:
    """Serialize places without values: encoding, number of words, words."""
    plain = Picked(picked.size, picked.places, picked.values[:0])  # no rows: only SHORT encodings can be read back
    index = _index(plain, SHORT)
    return _PLACES.pack(index, _words(index, plain)) + (b"" if plain.places is None else _places_out(index, plain))


def unpack_places(message: bytes | memoryview, size: int) -> Array | None:
    """Parse a message of :func:`pack_places`: places (n,), or None for all; raise :class:`PeerError` if malformed."""
    buffer = memoryview(message)
    if len(buffer) < _PLACES.size:
        raise _damaged(f"it has {len(buffer)} bytes, fewer than places begin with")
    kind, words = _PLACES.unpack(buffer[: _PLACES.size])
    body = buffer[_PLACES.size :]
    if kind not in (Index.ALL, *SHORT) or words > 2 * size or len(body) != _length(Index(kind), words, size):
        raise _damaged(f"it has {len(body)} bytes for {words} places of kind {kind} among {size} entries")
    return _places_in(Index(kind), body, words, size, None)


def _damaged(why: str) -> PeerError:
    return PeerError(f"a message with entries of a model cannot be read: {why}")


def _rows(index: Index, size: int, words: int, chunk: int, each: int) -> ChunkRows | None:
    """Return the layout in chunks, or None for other encodings; raise :class:`PeerError` if it is inconsistent."""
    if index is not Index.CHUNKS and not chunk:
        return None
    if not 1 <= each <= chunk <= 4096:
        raise _damaged(f"it picks {each} of each {chunk} entries")
    whole, rest = divmod(size, chunk)
    rows = ChunkRows(chunk, each, words - whole * each, whole)
    if not (0 < rows.last <= rest if rest else rows.last == 0):
        raise _damaged(f"it picks {words} entries, {each} of each {chunk} of {size}")
    return rows


def _index(picked: Picked, forms: tuple[Index, ...]) -> Index:
    if picked.places is None:
        return Index.ALL
    if picked.rows is not None:
        return min(Index.CHUNKS, Index.BITMAP, key=lambda one: _index_bytes(one, picked))
    fits = [one for one in forms if one is not Index.PLAIN or picked.size <= 1 << 32]
    return min(fits, key=lambda one: _index_bytes(one, picked))


def _gaps(places: Array) -> tuple[Array, Array]:
    """Return the number of skips before each place, and the rest of the distance to it, 1 to 65,535."""
    ways = np.diff(places, prepend=-1)
    empty = (ways - 1) // _FAR
    return empty, ways - empty * _FAR


def _words(index: Index, picked: Picked) -> int:
    if picked.places is None:
        return picked.size
    count = len(picked.places)
    return count + int(_gaps(picked.places)[0].sum()) if index is Index.GAPS else count


def _index_bytes(index: Index, picked: Picked) -> int:
    return _length(index, _words(index, picked), picked.size)


def _length(index: Index, words: int, size: int) -> int:
    of_word = {Index.LONG: 8, Index.PLAIN: 4, Index.GAPS: 2}
    if index in of_word:
        return of_word[index] * words
    return {Index.ALL: 0, Index.BITMAP: (size + 7) // 8, Index.CHUNKS: 3 * ((words + 1) // 2)}[index]


def _places_out(index: Index, picked: Picked) -> bytes:
    places = picked.places
    assert places is not None
    if index is Index.LONG:
        return places.astype("<u8").tobytes()
    if index is Index.PLAIN:
        return places.astype("<u4").tobytes()
    if index is Index.BITMAP:
        bits = np.zeros(picked.size, dtype=np.bool_)
        bits[places] = True
        return np.packbits(bits, bitorder="little").tobytes()
    if index is Index.CHUNKS:
        assert picked.rows is not None
        return _twelve_bits((places % picked.rows.chunk).astype(np.uint16))
    empty, rest = _gaps(places)
    words = np.zeros(len(places) + int(empty.sum()), dtype="<u2")
    words[np.arange(len(places)) + np.cumsum(empty)] = rest
    return words.tobytes()


def _places_in(index: Index, body: memoryview, words: int, size: int, rows: ChunkRows | None) -> Array | None:
    if index is Index.ALL:
        if words != size:
            raise _damaged(f"it announces all entries, and {words} of {size}")
        return None
    if index is Index.BITMAP:
        bits = np.unpackbits(np.frombuffer(body, np.uint8), bitorder="little")
        if bits[size:].any():
            raise _damaged("bits behind the last entry are set")
        places = np.flatnonzero(bits[:size])
        if len(places) != words:
            raise _damaged(f"{len(places)} bits are set for {words} entries")
        if rows is not None and (np.bincount(places // rows.chunk, minlength=rows.chunks) != rows.many).any():
            raise _damaged(f"other than {rows.each} bits are set in a chunk")
        return places
    if index is Index.GAPS:
        given = np.frombuffer(body, "<u2").astype(np.int64)
        places = (np.cumsum(np.where(given == 0, _FAR, given)) - 1)[given != 0]  # −1: gaps start before place 0
        if words and not given[-1]:
            raise _damaged("its places end with a gap that leads to no entry")
    elif rows is not None:
        within = _from_twelve_bits(body, words).astype(np.int64)
        chunk = np.repeat(np.arange(rows.chunks), rows.many)
        if (within >= rows.chunk).any():
            raise _damaged(f"a place is outside of its chunk of {rows.chunk} entries")
        places = within + rows.chunk * chunk
    else:
        places = np.frombuffer(body, {Index.LONG: "<u8", Index.PLAIN: "<u4"}[index]).astype(np.int64)
    if len(places) and (places[0] < 0 or places[-1] >= size or (np.diff(places) <= 0).any()):
        raise _damaged(f"its places do not ascend within {size} entries")
    return places


def _twelve_bits(numbers: Array) -> bytes:
    """Pack two numbers below 4,096 in three bytes; an odd last one with a 0."""
    even = np.concatenate((numbers, np.zeros(len(numbers) % 2, dtype=np.uint16)))
    a, b = even[0::2], even[1::2]
    return np.stack((a >> 4, (a & 15) << 4 | b >> 8, b & 255), axis=1).astype(np.uint8).tobytes()


def _from_twelve_bits(body: memoryview, count: int) -> Array:
    three = np.frombuffer(body, np.uint8).reshape(-1, 3).astype(np.uint16)
    pair = np.stack((three[:, 0] << 4 | three[:, 1] >> 4, (three[:, 1] & 15) << 8 | three[:, 2]), axis=1).reshape(-1)
    if pair[count:].any():
        raise _damaged("there is something behind its last place")
    return pair[:count]


def _value_bytes(picked: Picked) -> int:
    return _values_length(len(picked.values), picked.bits, picked.values.dtype.itemsize, picked.rows)


def _values_length(count: int, bits: int, width: int, rows: ChunkRows | None) -> int:
    if bits == QUARTER:
        assert rows is not None
        return (count + 3) // 4 + 8 * rows.chunks
    return count * (2 if bits == HALF else width)


def _values_out(picked: Picked) -> bytes:
    values = picked.values
    if picked.bits == WHOLE:
        return values.astype(f"<f{values.dtype.itemsize}", copy=False).tobytes()
    if picked.bits == HALF:
        return to_bfloat16(values).astype("<u2").tobytes()
    assert picked.rows is not None
    levels, large = [np.zeros((0, 2), dtype="<f4")], [np.zeros(0, dtype=np.bool_)]
    for table in picked.rows.split(np.abs(values).astype("<f4")):
        ends = np.stack((table.min(1), table.max(1)), axis=1)
        # The two magnitudes of a chunk are its minimum and maximum, because `rounded` has left only these.
        levels.append(ends)
        large.append((table > ends[:, :1]).reshape(-1))
    bits = np.stack((np.signbit(values), np.concatenate(large)), axis=1)  # per entry: sign, then which magnitude
    return np.concatenate(levels).astype("<f4").tobytes() + np.packbits(bits, bitorder="little").tobytes()


def _values_in(body: memoryview, count: int, bits: int, width: int, rows: ChunkRows | None) -> Array:
    kind: np.dtype[Any] = np.dtype(f"<f{width}")
    if bits == WHOLE:
        return np.frombuffer(body, kind)
    if bits == HALF:
        return from_bfloat16(np.frombuffer(body, "<u2")).astype(kind)
    assert rows is not None
    levels = np.frombuffer(body[: 8 * rows.chunks], "<f4").reshape(-1, 2)
    pairs = np.unpackbits(np.frombuffer(body[8 * rows.chunks :], np.uint8), bitorder="little")[: 2 * count]
    ends = np.repeat(levels, rows.many, axis=0)
    sizes = np.where(pairs[1::2], ends[:, 1], ends[:, 0])
    return np.where(pairs[0::2], -sizes, sizes).astype(kind)
