"""Damaged data: what ``uneven bench mutations`` makes of it.

``damaged`` yields plain data, ``mutated`` files of any kind. ``judged`` holds a reader against a reference::

    judged(mutated([file], seed=1), tmp_path / "a.csv", ours, by_hand, cases=300)  # {"right": 120, "refused": 180}
"""

from __future__ import annotations

import gzip
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from uneven.errors import UnevenError
from uneven_bench.mutations.make import documents


def damaged(whole: Any, seed: int) -> Iterator[Any]:
    """Nested lists and dictionaries without end, each with something in it changed; the same for the same seed."""
    text = json.dumps(whole)
    for document in documents(seed, [text.encode()], json=True):
        with suppress(ValueError, RecursionError):
            data = json.loads(document)
            if json.dumps(data) != text:
                yield data


def mutated(wholes: Sequence[bytes], seed: int, *, text: bool = False) -> Iterator[bytes]:
    """Files without end, each one of these with something in it changed; the same for the same seed.

    Args:
        text: change also what editors, spreadsheets and packers change in text; else often some bits only.
    """
    dice, made = random.Random(seed), documents(seed, wholes)
    while True:
        data = dice.choice(wholes) if dice.random() < 0.4 else next(made)
        yield dice.choice(_TEXT if text else _BITS)(dice, data) if dice.random() < 0.7 else data


def judged(
    files: Iterator[bytes],
    path: Path,
    ours: Callable[[Path], Any],
    reference: Callable[[Path], Any],
    cases: int,
    same: Callable[[Any, Any], bool] = lambda a, b: bool(a == b),
) -> Counter[str]:
    """Read each file with both; raise an AssertionError if ours reads what the reference reads otherwise or not at all,
    and every error of ours that is not one of uneven's.

    Args:
        path: where each file is written in turn.
        cases: how many files.

    Returns:
        How many were read alike, "right", and how many "refused".
    """
    counts: Counter[str] = Counter()
    for number, data in enumerate(islice(files, cases)):
        path.write_bytes(data)
        try:
            found = ours(path)
        except UnevenError:
            counts["refused"] += 1
            continue
        except Exception as error:
            raise AssertionError(f"file {number}, {data[:2000]!r}: {type(error).__name__}: {error}") from error
        try:
            wanted = reference(path)
        except Exception as error:
            raise AssertionError(f"file {number}, {data[:2000]!r}, read as {found}; reference: {error!r}") from error
        assert same(found, wanted), (number, data[:2000], found, wanted)
        counts["right"] += 1
    return counts


_WORDS = (b"NA", b"nan", b"True", b"1_0", b"inf", b"\\N")


def _line(dice: random.Random, data: bytes, change: Callable[[bytes], bytes]) -> bytes:
    lines = data.split(b"\n")
    place = dice.randrange(len(lines))
    return b"\n".join([*lines[:place], change(lines[place]), *lines[place + 1 :]])


def _field(dice: random.Random, line: bytes) -> bytes:
    divider = next((one for one in (b"\t", b",", b" ") if one in line), b"\t")
    fields = line.split(divider)
    place = dice.randrange(len(fields))
    fields[place : place + 1] = dice.choice(
        ([], [b""], [fields[place]] * 2, [b'"' + fields[place] + b'"'], [b" " + fields[place]], [fields[place] + b"\0"],
         [fields[place] + b".0"], [dice.choice(fields)], [b"-" + fields[place]], *([one] for one in _WORDS))
    )  # fmt: skip
    return divider.join(fields)


_TEXT: tuple[Callable[[random.Random, bytes], bytes], ...] = (
    lambda dice, data: b"\xef\xbb\xbf" + data,
    lambda dice, data: data.replace(b"\n", b"\r\n"),
    lambda dice, data: data.replace(b"\n", b"\r"),
    lambda dice, data: data + b"\n",
    lambda dice, data: data.rstrip(b"\n"),
    lambda dice, data: _line(dice, data, lambda line: line + b"\r"),
    lambda dice, data: _line(dice, data, lambda line: line + b"\n"),
    lambda dice, data: _line(dice, data, lambda line: b"a\tb\tc\td\n" + line),
    lambda dice, data: _line(dice, data, lambda line: _field(dice, line)),
    lambda dice, data: _line(dice, data, lambda line: _field(dice, line)),
    lambda dice, data: _line(dice, data, lambda line: _field(dice, line)),
    lambda dice, data: data.replace(b"\t", b",") if b"\t" in data else data.replace(b",", b"\t"),
    lambda dice, data: data.decode("utf-8", "replace").encode("utf-16"),
    lambda dice, data: gzip.compress(data),
    lambda dice, data: gzip.compress(data)[: -dice.randrange(1, 20)],
    lambda dice, data: gzip.compress(data[:40]) + gzip.compress(data[40:]) + bytes(dice.randrange(3)),
)  # fmt: skip


def _flipped(dice: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(min(len(data), dice.choice((1, 1, 2, 4)))):
        changed[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
    return bytes(changed)


_BITS = (_flipped,)
