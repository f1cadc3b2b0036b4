"""Look-ups from other programs: requests and answers as bytes, the same over HTTP and ZeroMQ.

::

    request   {"ids": {"origin": [3, 7], "tags": [[1, 2], []]}}   two samples: an id each, or a bag of any length
    answer    {"shape": [2, 24], "updates": 812, "columns": {"origin": [0, 16], "tags": [16, 24]}}
              then the numbers, float32, little-endian, of this shape
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from uneven.embedding.pure.config import TableSpec
from uneven.embedding.pure.route import BatchIds, GivenFeatures, by_sample
from uneven.embedding.pure.row_optimizers import Floats
from uneven.errors import DataError

MOST_BYTES = 4 << 20  # of a request
MOST_NUMBERS = 1 << 20  # of an answer, and of all that are looked up together


@dataclass(frozen=True, slots=True)
class LookupAnswer:
    """The rows of a request, shape (batch, width)."""

    rows: Floats
    updates: int  # of all workers in these rows
    columns: dict[str, slice]

    @property
    def frames(self) -> list[bytes]:
        """The description of the numbers as JSON, and the numbers."""
        columns = {name: (at.start, at.stop) for name, at in self.columns.items()}
        said = {"shape": self.rows.shape, "updates": self.updates, "columns": columns}
        return [json.dumps(said).encode(), np.ascontiguousarray(self.rows, "<f4").tobytes()]

    @property
    def text(self) -> bytes:
        """JSON with the rows of each feature, shape (batch, dim)."""
        features = {name: self.rows[:, at].tolist() for name, at in self.columns.items()}
        return json.dumps({"updates": self.updates, "features": features}).encode()


def read_request(body: bytes, tables: TableSpec) -> BatchIds:
    """Return a request's ids; raise :class:`DataError` with the reason if it is malformed, or asks for too much."""
    if len(body) > MOST_BYTES:
        raise DataError(f"a request of {len(body):,} bytes: send at most {MOST_BYTES:,}")
    try:
        given = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise DataError('no JSON: send {"ids": {feature: [id, …]}}') from error
    if not isinstance(given, dict) or given.keys() != {"ids"} or not isinstance(given["ids"], dict):
        raise DataError('send {"ids": {feature: [id, …]}}, and no other key')
    features = GivenFeatures(tables)
    names = features.names
    if wrong := given["ids"].keys() ^ set(names):
        raise DataError(f"features without ids, or without a table: {', '.join(map(repr, sorted(wrong)[:3]))}")
    values, lengths = zip(*(_bags(name, given["ids"][name]) for name in names), strict=True)
    if len({len(one) for one in lengths}) > 1:
        raise DataError("features with different numbers of samples: give each sample a bag, [] for none")
    if len(lengths[0]) * tables.width > MOST_NUMBERS:
        raise DataError(f"an answer of over {MOST_NUMBERS:,} numbers, {tables.width} a sample: send fewer")
    try:
        ids = by_sample(np.array([*chain(*values)], np.int64), np.array(lengths, np.int64))
    except OverflowError as error:
        raise DataError("an id is a whole number of 64 bits") from error
    return features.of_tables(ids)


def together(asked: Sequence[BatchIds]) -> BatchIds:
    """Join the samples of several requests, in order."""
    values, batch, first = np.concatenate([one.values for one in asked]), sum(one.batch for one in asked), asked[0]
    if first.each and all(one.each == first.each for one in asked):
        return BatchIds(values, batch, first.features, first.each)
    return BatchIds(values, batch, first.features, 0, np.concatenate([one.sizes for one in asked]))


def _bags(name: str, given: Any) -> tuple[list[int], list[int]]:
    """Return the ids, and the length of each bag; NumPy would convert other types."""
    ids, lengths = given, None
    if isinstance(given, list) and list in set(map(type, given)):
        bags = [one if type(one) is list else [one] for one in given]
        ids, lengths = [*chain(*bags)], [len(one) for one in bags]
    if not isinstance(ids, list) or not {int}.issuperset(map(type, ids)):
        raise DataError(f"feature {name!r}: give a list that has a whole number, or a list of them, per sample")
    return ids, lengths or [1] * len(ids)
