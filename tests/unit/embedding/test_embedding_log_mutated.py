"""Damaged click logs are refused by name, or read as csv and pyarrow read them."""

from __future__ import annotations

import csv
import gzip
import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from damaged import judged, mutated
from uneven.embedding import ClickLog, Columns, write_log

CASES = 40
COLUMNS = {
    "hex": Columns(0, (1, 2), (3, 4), "hex"),
    "int": Columns(0, (1,), (2, 3), "int"),
    "text": Columns(0, (1,), (2,), "text"),
    "unlabelled": Columns(None, (0,), (1,), "hex"),
}
EMPTY = ("", "NaN", "nan")


def read(path: Path, columns: Columns) -> list[list[float]]:
    log = ClickLog(path, columns=columns)
    return rows(*(one.numpy() for one in log.__getitems__(range(len(log)))))


def rows(ids: Any, numbers: Any, clicked: Any) -> list[list[float]]:
    return [[*map(str, one), *two.tolist(), str(three)] for one, two, three in zip(ids, numbers, clicked, strict=True)]


def text(kind: str, rows: int, divider: str = "\t", head: bool = False) -> bytes:
    made = np.random.default_rng(1)
    lines = [["label", "price", "where", "C1", "C2"]] if head else []
    for n in range(rows):
        ids = made.integers(0, 10**6, 2).tolist()
        lines.append([str(n % 2), f"{n / 4}" if n % 3 else "", "-7", *(f"{one:x}" if n % 5 else "" for one in ids)])
        if kind == "int":
            lines[-1] = [str(n % 2), f"{n}e-1", *map(str, ids)]
        if kind == "text":
            lines[-1] = [str(n % 2), str(n), f"é {ids[0]}"]
        if kind == "unlabelled":
            lines[-1] = [str(n), f"{ids[0]:X}"]
    return "".join(divider.join(one[: len(lines[-1])]) + "\n" for one in lines).encode()


def number(field: str) -> float:
    words = {"true": "1", "false": "0"}
    assert re.fullmatch(r"\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*", field, re.ASCII) or field.lower() in words
    with np.errstate(over="ignore"):
        found = np.float32(words.get(field.lower(), field))
    assert np.isfinite(found)
    return float(found)


def is_number(field: str) -> bool:
    try:
        return field.strip().lower() in ("", "nan", "inf", "-inf") or number(field) is not None
    except AssertionError:
        return False


def id_of(field: str, kind: str) -> int:
    if not field:
        return 0
    if kind == "hex":
        assert re.fullmatch("[0-9a-fA-F]{1,15}", field, re.ASCII), field
        return int(field, 16)
    if kind == "int":
        assert "_" not in field
        if field.strip().lower() == "nan":
            return 0
        value = float(field) if re.search("[.eE]", field) else int(field)
        assert value == int(value)
        assert -(2**63) <= value < 2**63
        return int(value)
    found = 14695981039346656037
    for letter in field.encode("utf-8", "surrogateescape"):
        found = (found ^ letter) * 1099511628211 % 2**64
    return found >> 1


def by_csv(path: Path, columns: Columns) -> list[list[float]]:
    data = path.read_bytes()
    data = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    letters = io.StringIO(data.decode("utf-8", "surrogateescape").removeprefix("\ufeff"), newline="")
    found = [one for one in csv.reader(letters, delimiter="," if path.suffix == ".csv" else "\t") if one]
    places = [*([] if columns.clicked is None else [columns.clicked]), *columns.numbers]
    if not any(is_number(found[0][one]) for one in places):
        found = found[1:]
    assert len({len(one) for one in found}) == 1
    ids = [np.array([id_of(one[place], columns.kind) for place in columns.ids]) for one in found]
    numbers = [
        [0.0 if one[place].strip() in EMPTY else number(one[place]) for place in columns.numbers] for one in found
    ]
    labels = [np.float32(np.nan if columns.clicked is None else number(one[columns.clicked])) for one in found]
    return rows(ids, np.array(numbers, np.float32), labels)


@pytest.mark.parametrize(
    ("kind", "name", "head", "many"),
    [
        ("hex", "a.tsv", False, 12),
        ("hex", "a.csv", True, 12),
        ("int", "a.tsv", True, 9),
        ("text", "a.tsv", False, 9),
        ("unlabelled", "a.tsv", True, 9),
    ],
)
def test_damaged_text(tmp_path: Path, kind: str, name: str, head: bool, many: int) -> None:
    whole = text(kind, many, "," if name == "a.csv" else "\t", head)
    columns = COLUMNS[kind]
    (tmp_path / name).write_bytes(whole)
    assert read(tmp_path / name, columns) == by_csv(tmp_path / name, columns)
    files = mutated([whole], seed=many, text=True)
    counts = judged(files, tmp_path / name, lambda one: read(one, columns), lambda one: by_csv(one, columns), CASES)
    assert min(counts["right"], counts["refused"]) > CASES // 10, counts


def test_damaged_archives(tmp_path: Path) -> None:
    (whole,) = write_log((([n, 5], [n / 2], n % 2) for n in range(20)), tmp_path)
    wanted = read(whole, Columns())
    files = mutated([whole.read_bytes()], seed=4)
    counts = judged(files, tmp_path / "a.npz", lambda one: read(one, Columns()), lambda one: wanted, CASES)
    assert counts["refused"] > CASES // 2, counts


def test_damaged_packed_text(tmp_path: Path) -> None:
    whole = gzip.compress(text("hex", 300))
    columns = COLUMNS["hex"]
    files = mutated([whole], seed=5)
    counts = judged(files, tmp_path / "a.gz", lambda one: read(one, columns), lambda one: by_csv(one, columns), CASES)
    assert counts["refused"] > CASES // 2, counts


def table() -> Any:
    made = np.random.default_rng(2)
    ids = made.integers(0, 1000, 40)
    gaps = [None if n % 7 == 3 else one for n, one in enumerate(ids.tolist())]
    return pa.table({
        "label": pa.array(ids % 2 == 0), "price": pa.array([None if one is None else one / 4 for one in gaps]),
        "whole": pa.array(gaps, pa.int32()), "id": pa.array(gaps, pa.uint64()), "float": pa.array(ids.astype(float)),
        "hex": pa.array([None if one is None else f"{one:x}" for one in gaps]),
        "dictionary": pa.array([f"{one:x}" for one in (ids % 5).tolist()]).dictionary_encode(),
    })  # fmt: skip


def by_pyarrow(path: Path, columns: Columns) -> list[list[float]]:
    found = [one.to_pylist() for one in pq.read_table(path).columns]
    assert all(one is not None for one in found[columns.clicked or 0])

    def id_in(value: Any) -> int:
        value = value.decode() if isinstance(value, bytes) else value
        if isinstance(value, str):
            return id_of(value, columns.kind)
        return 0 if value is None or value != value else int(value)

    ids = np.array([[id_in(one) for one in found[place]] for place in columns.ids]).T
    numbers = np.array([[one if one and one == one else 0 for one in found[p]] for p in columns.numbers], np.float32).T
    return rows(ids, numbers, np.array(found[columns.clicked or 0], np.float32))


@pytest.mark.parametrize("packed", ["none", "snappy"])
def test_damaged_parquet(tmp_path: Path, packed: str) -> None:
    columns = Columns(0, (1, 2), (3, 4, 5, 6))
    pq.write_table(table(), tmp_path / "a.parquet", row_group_size=15, compression=packed)
    whole = (tmp_path / "a.parquet").read_bytes()
    assert read(tmp_path / "a.parquet", columns) == by_pyarrow(tmp_path / "a.parquet", columns)
    files = mutated([whole], seed=6)
    path = tmp_path / "a.parquet"
    counts = judged(files, path, lambda one: read(one, columns), lambda one: by_pyarrow(one, columns), CASES)
    assert counts["refused"] > CASES // 5, counts
