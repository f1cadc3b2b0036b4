"""Malformed messages without end, sent to a serving shard. Pure, and the same for the same seed."""

import random
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from uneven.runtime.parameter_server.pure.shard import Shard
from uneven.runtime.parameter_server.pure.wire import ENTRY_BYTES, Entry, Kind, Message, encode

_LIFE = 5
_TABLE = 7
_MEMBERS = 4
_VECTOR = (np.arange(6, dtype=np.float32),)
_UP = (Kind.HELLO, Kind.OFFER, Kind.PUSH, Kind.PULL, Kind.EXCHANGE, Kind.GRADIENT, Kind.RESULT, Kind.PING,
       Kind.MOVEMENT, Kind.ASK, Kind.KEEP, Kind.FOLLOW)  # fmt: skip


def fuzz(messages: int, seed: int) -> Counter[str]:
    """Send ``messages`` to a shard, and count refusals by reason. Raises AssertionError: one was taken, or has changed
    something."""
    shard = served()
    vector, version, clock = shard.vector, shard.version, shard.least_clock
    before = Counter(shard.counts)
    for number, frames in enumerate(malformed(seed, messages)):
        shard.take(frames, 0.0)
        refused = shard.counts.total() - before.total()
        assert refused == number + 1, f"message {number} of seed {seed} was taken"
        assert shard.vector is vector, f"message {number} of seed {seed} has changed the copy"
    assert (shard.version, shard.least_clock) == (version, clock)
    return shard.counts - before


def served() -> Shard:
    """Return a shard that serves four members, with clocks at 0."""
    shard = Shard(_LIFE, range(_MEMBERS))
    for rank in range(_MEMBERS):
        hello = Message(kind=Kind.HELLO, rank=rank, table=_TABLE, elements=6)
        shard.take(encode(hello), 0.0)
    shard.take(encode(_carrying(Kind.OFFER, 0)), 0.0)
    assert shard.serving
    return shard


def malformed(seed: int, messages: int) -> Iterator[list[bytes]]:
    """Yield frames that a shard must reject: good messages, each with a single error."""
    rng = random.Random(seed)
    for _ in range(messages):
        yield rng.choice(_WAYS)(rng)


def _carrying(kind: Kind, rank: int) -> Message:
    return Message(
        kind=kind,
        rank=rank,
        number=1,
        sequence=1,
        life=_LIFE,
        value=1.0,
        extra=2,
        table=_TABLE,
        elements=6,
        vector=_VECTOR,
    )


def _good(rng: random.Random) -> Message:
    kind, rank = rng.choice(_UP), rng.randrange(_MEMBERS)
    whole = _carrying(kind, rank)
    if kind in (Kind.OFFER, Kind.PUSH, Kind.EXCHANGE, Kind.GRADIENT, Kind.MOVEMENT, Kind.KEEP):
        return whole
    return replace(whole, vector=(), elements=6 if kind is Kind.HELLO else 0)


def _raw(message: Message) -> list[bytes]:
    return [bytes(frame) for frame in encode(message)]


def _noise(rng: random.Random) -> list[bytes]:
    return [rng.randbytes(rng.choice((0, 1, 24, 112, 200))) for _ in range(rng.randrange(6))]


def _cut(rng: random.Random) -> list[bytes]:
    frames = _raw(_good(rng))
    place = rng.randrange(len(frames))
    frame = frames[place]
    size = rng.randrange(len(frame)) if frame and rng.random() < 0.5 else len(frame) + rng.randint(1, 40)
    frames[place] = frame[:size].ljust(size, b"\0")
    return frames


def _frames(rng: random.Random) -> list[bytes]:
    frames = _raw(_good(rng))
    if rng.random() < 0.5:
        return [*frames, rng.randbytes(rng.randrange(50))]
    del frames[rng.randrange(len(frames))]
    return frames


def _patch(offset: int, form: str, value: Callable[[random.Random], float | int]) -> Callable[..., list[bytes]]:
    def way(rng: random.Random) -> list[bytes]:
        frames = _raw(_good(rng))
        header = bytearray(frames[0])
        struct.pack_into(form, header, offset, value(rng))
        return [bytes(header), *frames[1:]]

    return way


def _magic(rng: random.Random) -> list[bytes]:
    frames = _raw(_good(rng))
    return [b"XNEV"[: rng.randint(1, 4)].ljust(4, b"?") + frames[0][4:], *frames[1:]]


def _numbers(rng: random.Random) -> list[bytes]:
    bad = _VECTOR[0].copy()
    bad[rng.randrange(6)] = rng.choice((np.nan, np.inf, -np.inf))
    kind = rng.choice((*_MOVING, Kind.KEEP))
    return _raw(replace(_carrying(kind, rng.randrange(_MEMBERS)), vector=(bad,)))


def _wrong(change: Callable[[random.Random], dict[str, float]], *kinds: Kind) -> Callable[..., list[bytes]]:
    def way(rng: random.Random) -> list[bytes]:
        message = _carrying(rng.choice(kinds), rng.randrange(_MEMBERS)) if kinds else _good(rng)
        return _raw(replace(message, **change(rng)))  # type: ignore[arg-type]  # a field's name and its value

    return way


def _twice(rng: random.Random) -> list[bytes]:
    entry = Entry(rng.randrange(_MEMBERS), True, 1, 1)
    return _raw(replace(_good(rng), entries=(entry, entry)))


def _entries(rng: random.Random) -> list[bytes]:
    frames = _raw(_good(rng))
    return [frames[0], rng.randbytes(rng.randint(1, 3 * ENTRY_BYTES)), *frames[2:]]


def _unasked(rng: random.Random) -> list[bytes]:
    return _raw(_carrying(Kind.OFFER, rng.randrange(_MEMBERS)))


_MOVING = (Kind.PUSH, Kind.EXCHANGE, Kind.GRADIENT, Kind.MOVEMENT)
_WAYS: tuple[Callable[[random.Random], list[bytes]], ...] = (
    *(_noise, _cut, _frames, _magic, _numbers, _twice, _entries, _unasked),
    _patch(4, "<H", lambda rng: rng.randint(2, 65535)),  # version
    _patch(6, "<B", lambda rng: rng.choice((0, rng.randint(16, 32), rng.randint(48, 255)))),  # no kind
    _patch(6, "<B", lambda rng: rng.choice((34, 35, 36, 40, 41, 42, 43, 44, 45))),  # messages that only shards send
    _patch(7, "<B", lambda rng: rng.randint(2, 255)),  # kind of numbers
    _patch(16, "<I", lambda rng: rng.randint(1, 2**32 - 1)),  # members announced
    _patch(20, "<I", lambda rng: rng.randint(1, 2**32 - 1)),  # padding
    _patch(72, "<Q", lambda rng: rng.randint(25, 2**64 - 1)),  # bytes
    _patch(80, "<d", lambda rng: rng.choice((np.nan, np.inf, -np.inf))),  # value
    _wrong(lambda rng: {"rank": rng.randint(_MEMBERS, 2**32 - 1)}),
    _wrong(lambda rng: {"value": -rng.random() - 1e-9}),
    _wrong(lambda rng: {"clock": rng.randint(2**48 + 1, 2**64 - 1)}),
    _wrong(lambda rng: {"version": rng.randint(2**48 + 1, 2**64 - 1)}),
    _wrong(lambda rng: {"extra": rng.randint(2**48 + 1, 2**64 - 1)}, Kind.PUSH),
    _wrong(lambda rng: {"table": rng.choice((0, rng.randint(8, 2**32 - 1)))}, *_MOVING),
    _wrong(lambda rng: {"sequence": 0}, *_MOVING),
    _wrong(lambda rng: {"value": 0.0}, Kind.PUSH, Kind.EXCHANGE, Kind.MOVEMENT),
    _wrong(lambda rng: {"value": 1.0 + 1e-6 + rng.random()}, Kind.EXCHANGE),
    _wrong(lambda rng: {"extra": rng.choice((0, rng.randint(_MEMBERS + 1, 2**40)))}, Kind.GRADIENT, Kind.MOVEMENT),
    _wrong(lambda rng: {"momentum": rng.choice((-rng.random() - 1e-9, 1.0 + rng.random(), np.nan))}, Kind.MOVEMENT),
    _wrong(lambda rng: {"grace": rng.choice((-rng.random() - 1e-9, np.inf))}, Kind.MOVEMENT),
    _wrong(lambda rng: {"momentum": rng.random() + 1e-9}, Kind.PULL, Kind.PUSH, Kind.GRADIENT),
    _wrong(lambda rng: {"clock": rng.randint(1, 2**40)}, Kind.GRADIENT),
)
