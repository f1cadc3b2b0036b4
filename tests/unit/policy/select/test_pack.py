"""Entries become bytes and entries again; bytes that are damaged are refused."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from uneven.errors import PeerError
from uneven.policy.select import HEADER_BYTES, Index, Picked, Significant, TopK, pack, unpack
from uneven.policy.select.picked import rounded

FORMS = ((Index.LONG,), (Index.PLAIN,), (Index.GAPS,), (Index.BITMAP,))


def same(one: Picked, other: Picked) -> bool:
    places = one.places is other.places or np.array_equal(one.places, other.places)  # type: ignore[arg-type]
    return places and np.array_equal(one.values, other.values, equal_nan=True) and one.size == other.size


@given(
    seed=st.integers(0, 2**31), form=st.sampled_from(FORMS), kind=st.sampled_from(["f4", "f8"]),
    bits=st.sampled_from([32, 16]), part=st.sampled_from([0.0, 0.0001, 0.3, 1.0]),
)  # fmt: skip
def test_there_and_back(seed: int, form: tuple[Index, ...], kind: str, bits: int, part: float) -> None:
    random = np.random.default_rng(seed)
    size = int(random.integers(1, 300_000))
    places = np.flatnonzero(random.random(size) < part)
    values = rounded(random.normal(size=len(places)).astype(kind), bits)
    picked = Picked(size, places, values, bits)
    clock, weight, back = unpack(pack(picked, 7, 0.5, form), size, values.dtype.itemsize)
    assert (clock, weight) == (7, 0.5)
    assert same(picked, back)


@given(
    seed=st.integers(0, 2**31), length=st.integers(1, 9000), density=st.floats(0.001, 1.0),
    chunk=st.sampled_from([1, 7, 64, 4096]), bits=st.sampled_from([32, 16, 2]),
)  # fmt: skip
def test_chunks_there_and_back(seed: int, length: int, density: float, chunk: int, bits: int) -> None:
    held = np.random.default_rng(seed).normal(size=length).astype(np.float32)
    picked = TopK(density, chunk, bits).pick(held, held)
    assert same(picked, unpack(pack(picked, 0), length, 4).picked)


def test_the_whole_vector_there_and_back() -> None:
    whole = Picked(1000, None, np.random.default_rng(0).normal(size=1000))
    message = pack(whole, 3)
    assert len(message) == HEADER_BYTES + 8000
    assert same(whole, unpack(message, 1000, 8).picked)


def test_halves_are_rounded_as_torch_rounds_them() -> None:
    torch = pytest.importorskip("torch")
    values = np.random.default_rng(0).normal(size=10_000).astype(np.float32)
    values[:4] = [np.inf, -np.inf, np.nan, 1 + 2.0**-9]
    mine = rounded(values, 16)
    assert np.array_equal(mine, torch.from_numpy(values).bfloat16().float().numpy(), equal_nan=True)


def messages() -> list[tuple[bytes, int]]:
    held = np.random.default_rng(0).normal(size=150_000).astype(np.float32)
    held[3:140_000] = 0.0  # a gap longer than a word of two bytes tells
    some = Significant(0.9).pick(held, np.ones_like(held))
    chunks = TopK(0.1, bits=2).pick(held, held)
    whole = Picked(len(held), None, held)
    return [
        *((pack(some, 1, 1.0, form), len(held)) for form in FORMS),
        (pack(chunks, 1), len(held)),
        (pack(whole, 1), len(held)),
    ]


@pytest.mark.parametrize("number", range(6))
def test_a_message_of_another_length_is_refused(number: int) -> None:
    message, size = messages()[number]
    unpack(message, size, 4)
    for length in (0, 10, HEADER_BYTES - 1, HEADER_BYTES, len(message) // 2, len(message) - 1):
        with pytest.raises(PeerError, match="cannot be read"):
            unpack(message[:length], size, 4)
    with pytest.raises(PeerError, match="bytes for"):
        unpack(message + b"\0", size, 4)


@pytest.mark.parametrize("number", range(6))
def test_a_message_for_another_model_is_refused(number: int) -> None:
    message, size = messages()[number]
    with pytest.raises(PeerError, match="of a vector of 150000 numbers of 4 bytes"):
        unpack(message, size + 1, 4)
    with pytest.raises(PeerError, match="of 8"):
        unpack(message, size, 8)


@pytest.mark.parametrize("number", range(6))
@given(seed=st.integers(0, 2**31))
def test_bytes_that_are_changed_are_refused_or_name_entries_of_the_vector(number: int, seed: int) -> None:
    message, size = messages()[number]
    random, damaged = np.random.default_rng(seed), bytearray(message)
    for place in random.integers(0, len(damaged) if seed % 2 else HEADER_BYTES, size=2):
        damaged[place] ^= int(random.integers(1, 256))
    try:
        found = unpack(bytes(damaged), size, 4).picked
    except PeerError:
        return
    found.dense()  # every place lies in the vector, and there is a value for each


def _changed(message: bytes, at: int, to: bytes) -> bytes:
    return message[:at] + to + message[at + len(to) :]


def test_each_guard_has_been_seen_to_refuse() -> None:
    picked = Picked(100, np.array([5, 9]), np.ones(2, np.float32))
    plain, gaps, bitmap = (pack(picked, 0, 1.0, (form,)) for form in (Index.PLAIN, Index.GAPS, Index.BITMAP))
    chunked = pack(TopK(0.05, chunk=64).pick(np.ones(100, np.float32), np.ones(100)), 0)
    dense_chunks = pack(TopK(0.5, chunk=10).pick(np.tile([1, 0], 50).astype(np.float32), np.ones(100)), 0)
    body = HEADER_BYTES
    for message, size, why in (
        (_changed(plain, 0, b"ELSE"), 100, "begins with"),
        (_changed(plain, 4, b"\2"), 100, "version 2"),
        (_changed(plain, 5, b"\7"), 100, "places of kind 7"),
        (_changed(plain, 6, b"\5"), 100, "5 bits"),
        (_changed(plain, 6, b"\2"), 100, "without chunks"),
        (_changed(plain, 24, b"\377"), 100, "255 of 100 entries"),
        (_changed(plain, body, b"\11\0\0\0"), 100, "do not ascend"),
        (_changed(plain, body + 4, b"\144\0\0\0"), 100, "do not ascend within 100"),
        (_changed(gaps, body, b"\377\377"), 100, "within 100"),
        (_changed(gaps, body + 2, b"\0\0"), 100, "leads to no entry"),
        (_changed(bitmap, body, b"\x21"), 100, "3 bits are set"),
        (_changed(bitmap, body + 12, b"\200"), 100, "behind the last entry"),
        (_changed(chunked, 40, b"\0\0\0\0"), 100, "of each 0 entries"),
        (_changed(chunked, 44, b"\50\0\0\0"), 100, "picks 6 entries"),
        (_changed(chunked, body, b"\377\377\377"), 100, "outside of its chunk"),
        (_changed(dense_chunks, body, b"\124\135"), 100, "bits are set in a chunk"),
        (_changed(plain, 32, struct.pack("<d", -1.0)), 100, "-1.0 samples"),
        (_changed(plain, 5, b"\0"), 100, "announces all entries"),
    ):
        with pytest.raises(PeerError, match=why):
            unpack(message, size, 4)
