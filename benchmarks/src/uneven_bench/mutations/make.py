"""Damaged inputs: good ones, each changed once to three times. Pure, and the same for the same seed."""

import random
import re
from collections.abc import Callable, Iterator, Sequence

Document = Callable[[random.Random, bytes], bytes]  # a single change of a document
_LONG = 400
_NUMBERS = (
    *("0", "-1", "1", "3.5", "1e-9", "-0.0", "5e-324", "1e308", "-1e308", "1e999", "2147483648"),
    *("-9223372036854775809", "9223372036854775807", "9223372036854775808"),
    *("18446744073709551616", "1000000000000", "1" + "0" * _LONG),
    *("7" * 5000, "0." + "0" * _LONG + "1"),
)
_TEXTS = (
    *('""', '"x"', '"lb-bsp\\n"', '"\\u0000"', '"a\\u001b[31mb"', '"\\u202e"', '"../x"', '"."', '".x:y"', '":"'),
    *('"a:b"', f'"{"n" * 300}"', f'"{"d/" * 2100}"', '"nan"', '"東京"', '"static:shares=1e400"', '"%s{0}"'),
)
_TOML = (*("inf", "-inf", "nan", "1979-05-27", "1979-05-27T07:32:00Z", "07:32:00", "0x7fffffffffffffff", "'raw'"),)
_JSON = ("NaN", "Infinity", "-Infinity", "null", '"inf"', '"\\ud800"', "[null]", '{"a": {"b": []}}')
_SHAPES = ("true", "false", "[]", "{}", "[[]]", "[1, 2]", '["a"]', "[1.5, true]", "[" * 3000)
_VALUE = re.compile(
    rb'"(?:[^"\\\n]|\\.)*"|[-+]?\d[\dxa-fA-F_.eE+-]*|\b(?:true|false|null|inf|nan)\b|\[[^][]*\]|\{[^{}]*\}'
)
_NUMBER = re.compile(rb"(?<![\w.])\d[\d_]*(?:\.\d+)?(?:e[-+]?\d+)?(?![\w.])")
_WORDS = (
    *("", "-", "--", "-1", "0", "nan", "inf", "1e999", "9" * _LONG, "7" * 5000, "1" + "0" * 12, "a\nb", "\x1b[31m"),
    *("n" * 300, "d/" * 2100 + "x", "\udcff", "東京", "..", ".", "\u202e", "1,2", "1/0", "x:", ":", "=", "a=b=c", "{}"),
    *("even", "lb-bsp\n", "static:shares=1", "ssp:staleness=-1", "local:every=0", "shadow:shadow:ma", "bsp:x"),
    *("--help", "dir", "no.toml", "cluster.toml", "train.py", "noutf8.toml", "run", "empty"),
)
_BYTES = (*(b"\0", b"\xff\xfe", b"\xed\xa0\x80", b"\r", b"\x1b"), *(b'"', b"'''", b"[", b"{", b"=", b"\n", b"#"))
_CHARACTERS = "0123456789-=:,.abcxyz \n\x1b\x7f\udcff\u202eé"
"""Without a slash, so that written files stay below the working directory."""


def documents(seed: int, seeds: Sequence[bytes], json: bool = False) -> Iterator[bytes]:
    """Yield documents without end, from good ``seeds``, as JSON or else TOML."""
    rng, kinds = random.Random(seed), (_JSON if json else _TOML)
    pool = tuple(one.encode() for one in (*_NUMBERS, *_TEXTS, *_SHAPES, *kinds))

    def value(rng: random.Random, data: bytes) -> bytes:
        found = list(_VALUE.finditer(data))
        if not found:
            return rng.choice(pool)
        one = rng.choice(found)
        new = rng.choice(found)[0] if rng.random() < 0.2 else rng.choice(pool)
        return data[: one.start()] + new + data[one.end() :]

    ways: tuple[Document, ...] = (value, value, value, value, *_WAYS)
    while True:
        data = rng.choice(seeds)
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            data = rng.choice(ways)(rng, data)
        yield data


def commands(seed: int, seeds: Sequence[Sequence[str]]) -> Iterator[list[str]]:
    """Yield arguments of a command line without end; the first word, the command, mostly stays."""
    rng = random.Random(seed)
    while True:
        words = list(rng.choice(seeds))
        for _ in range(rng.choice((1, 1, 2, 3))):
            _change_words(rng, words)
        yield [word.replace("\0", "") for word in words]  # no system passes on a word with a null character


def _change_words(rng: random.Random, words: list[str]) -> None:
    place = rng.randrange(0 if rng.random() < 0.05 else 1, max(len(words), 2))
    place = min(place, len(words) - 1) if words else 0
    match rng.randrange(6):
        case 0:
            words.insert(place + 1, rng.choice(_WORDS))
        case 1 if len(words) > 1:
            del words[place]
        case 2 if words:
            words.insert(place, words[place])
        case 3 if words:
            words[place] = _spelled(rng, words[place])
        case _ if words:
            words[place] = rng.choice(_WORDS)


def _spelled(rng: random.Random, word: str) -> str:
    """Take out, insert or change one character, or replace a number."""
    numbers = list(re.finditer(r"\d+(\.\d+)?", word))
    if numbers and rng.random() < 0.5:
        one = rng.choice(numbers)
        return word[: one.start()] + rng.choice(_NUMBERS) + word[one.end() :]
    place = rng.randrange(len(word) + 1)
    return word[:place] + rng.choice((rng.choice(_CHARACTERS), "")) + word[place + rng.randrange(2) :]


def _bits(rng: random.Random, data: bytes) -> bytes:
    if not data:
        return data
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _slice(rng: random.Random, data: bytes) -> tuple[int, int]:
    first = rng.randrange(len(data) + 1)
    return first, min(len(data), first + rng.choice((1, 2, 8, 40)))


def _cut(rng: random.Random, data: bytes) -> bytes:
    first, last = _slice(rng, data)
    return data[:first] + data[last:]


def _double(rng: random.Random, data: bytes) -> bytes:
    first, last = _slice(rng, data)
    return data[:last] + data[first:last] + data[last:]


def _insert(rng: random.Random, data: bytes) -> bytes:
    place = rng.randrange(len(data) + 1)
    return data[:place] + rng.choice(_BYTES) + data[place:]


def _end(rng: random.Random, data: bytes) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def _lines(rng: random.Random, data: bytes) -> bytes:
    """Delete, repeat or move a line."""
    lines = data.split(b"\n")
    one, there = rng.randrange(len(lines)), rng.randrange(len(lines))
    match rng.randrange(3):
        case 0:
            del lines[one]
        case 1:
            lines.insert(there, lines[one])
        case _:
            lines.insert(there, lines.pop(one))
    return b"\n".join(lines)


def _word(rng: random.Random, data: bytes) -> bytes:
    """Replace a key, a table or a word by another one of the text."""
    words = list(re.finditer(rb"[A-Za-z_]+", data))
    if not words:
        return data
    one, other = rng.choice(words), rng.choice(words)
    return data[: one.start()] + other[0] + data[one.end() :]


def _scaled(rng: random.Random, data: bytes) -> bytes:
    """Change a number by a factor of a unit, or by a little."""
    numbers = [one for one in _NUMBER.finditer(data) if len(one[0]) < 20]
    if not numbers:
        return data
    one = rng.choice(numbers)
    value = float(one[0].replace(b"_", b"")) * rng.choice((0.5, 2, 3, 10, 1e3, 1e6, 1e9, 1e-3, 1e-6, 1e-9))
    whole = b"." not in one[0] and b"e" not in one[0] and value >= 1
    return data[: one.start()] + (str(int(value)) if whole else repr(value)).encode() + data[one.end() :]


_WAYS: tuple[Document, ...] = (
    *(_scaled, _scaled, _scaled, _scaled),
    *(_bits, _cut, _double, _insert, _end, _lines, _lines, _word),
)
