"""Click logs as users of other tools have them: the rows that pandas or pyarrow reads, or a refusal that names why."""

from __future__ import annotations

import datetime
import decimal
import gzip
import io
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from brought import brought, refusal
from uneven.embedding import ClickLog, Columns, write_log
from uneven.errors import DataError

IDS = [3, 250, 0, 7, 1_000_003]
ROWS = [f"{n % 2}\t{n}.5\t-1\t{one:x}\t{one * 3:X}" for n, one in enumerate(IDS)]
PLAIN = "\n".join(ROWS) + "\n"
HEAD = "label\tI1\tI2\tC1\tC2\n"
BOM = b"\xef\xbb\xbf"
SMALL = Columns(clicked=0, numbers=(1, 2), ids=(3, 4))


def cases(*rows: tuple[Any, ...], refused: bool = False) -> list[Any]:
    """Cases of ``parametrize``, each with its words at the end; with "peer: input" it is a row of the page."""
    found = []
    for *given, words in rows:
        peer, row, what = words.partition(": ")
        found.append(pytest.param(*given, id=words, marks=brought("logs", peer, what, refused=refused) if row else ()))
    return found


def read(path: Any, columns: Columns = SMALL) -> tuple[np.ndarray, ...]:
    log = ClickLog(path, columns=columns)
    return tuple(one.numpy() for one in log.__getitems__(range(len(log))))


def expected() -> tuple[np.ndarray, ...]:
    """What pandas reads of the plain text."""
    import pandas as pd  # takes seconds, and every process of the tests collects this file

    table = pd.read_csv(io.StringIO(PLAIN), sep="\t", header=None, dtype={3: str, 4: str})
    ids = table[[3, 4]].map(lambda one: int(one, 16)).to_numpy(np.int64)
    return ids, table[[1, 2]].to_numpy(np.float32), table[0].to_numpy(np.float32)


def packed(how: str, name: str) -> bytes:
    """An archive with the plain text in it."""
    out = io.BytesIO()
    if how == "zip":
        with zipfile.ZipFile(out, "w") as made:
            made.writestr(name, PLAIN)
    else:
        with tarfile.open(fileobj=out, mode="w:gz") as file:
            entry = tarfile.TarInfo(name)
            entry.size = len(PLAIN)
            file.addfile(entry, io.BytesIO(PLAIN.encode()))
    return out.getvalue()


def arrays(one: Any = None, **several: Any) -> bytes:
    out = io.BytesIO()
    np.savez(out, **several) if several else np.save(out, one)
    return out.getvalue()


def same(found: tuple[np.ndarray, ...], wanted: tuple[np.ndarray, ...]) -> bool:
    return all(np.array_equal(a, b, equal_nan=True) and a.dtype == b.dtype for a, b in zip(found, wanted, strict=True))


@pytest.mark.parametrize(
    ("name", "data"),
    cases(
        ("day_0.gz", gzip.compress(PLAIN.encode()), "DLRM: Criteo's days, `day_0.gz`"),
        ("day_0", gzip.compress(PLAIN.encode()), "DLRM: gzip without `.gz` in its name"),
        (
            "a.gz",
            b"".join(gzip.compress(f"{one}\n".encode()) for one in ROWS),
            "DLRM: `.gz` of several parts (pigz, `cat`)",
        ),
        ("a.tsv", (HEAD + PLAIN).encode(), "pandas: a header line"),
        ("a.gz", gzip.compress(BOM + (HEAD + PLAIN).encode()), "gzip with a header"),
        ("a.tsv", (PLAIN + "\n").encode(), "TorchRec: a blank last line"),
        ("a.tsv", ("\n" + PLAIN.replace("\n", "\r\n\r\n")).encode(), "pandas: blank lines"),
        ("a.tsv", PLAIN.replace("\n", "\r\n").encode(), "pandas: Windows line ends (CRLF)"),
        ("a.tsv", BOM + PLAIN.encode(), "pandas: a byte-order mark"),
        ("a.tsv", BOM + (HEAD + PLAIN).replace("\n", "\r\n").encode() + b"\r\n", "all of it"),
        ("a.csv", (HEAD + PLAIN).replace("\t", ",").encode(), "FuxiCTR: `.csv` with commas, as Avazu's"),
        ("a.csv.gz", gzip.compress(PLAIN.replace("\t", ",").encode()), "packed commas"),
        ("a.tsv", ("0\t1\t2\t3\t4\n" + PLAIN).encode(), "pandas: a first line of `to_csv` with column numbers"),
        (
            "a.tsv",
            PLAIN.replace("0\t", "False\t", 1).replace("\n1\t", "\ntrue\t").encode(),
            "pandas: labels `True`, `False`",
        ),
    ),
)
def test_text_is_read_as_the_peer_reads_it(tmp_path: Path, name: str, data: bytes) -> None:
    (tmp_path / name).write_bytes(data)
    assert same(read(tmp_path / name), expected())
    (tmp_path / "empty.tsv").write_bytes(b"")
    (tmp_path / "head.tsv").write_text(HEAD)
    many = ["empty.tsv", name, "head.tsv", name]
    assert same(read([tmp_path / one for one in many]), tuple(np.concatenate([one, one]) for one in expected()))


@brought("logs", "pandas", "one path, as `Path` or string")
@pytest.mark.parametrize("of", [Path, str])
def test_one_path(tmp_path: Path, of: Any) -> None:
    (tmp_path / "a.tsv").write_text(PLAIN)
    assert same(read(of(tmp_path / "a.tsv")), expected())


@brought("logs", "DLRM", "no label column (Criteo's `test.txt`): labels are NaN")
def test_a_log_without_labels(tmp_path: Path) -> None:
    for text in (PLAIN, HEAD + PLAIN):
        (tmp_path / "a.tsv").write_text("\n".join(one.partition("\t")[2] for one in text.splitlines()))
        ids, numbers, _ = expected()
        unlabelled = Columns(clicked=None, numbers=(0, 1), ids=(2, 3))
        assert same(read(tmp_path / "a.tsv", unlabelled), (ids, numbers, np.full(len(IDS), np.nan, np.float32)))


@brought("logs", "DLRM", "missing numbers and ids: 0")
@pytest.mark.parametrize(("kind", "id_text"), [("hex", "f"), ("int", "15"), ("int", "15.0"), ("text", "é a")])
def test_missing_values(tmp_path: Path, kind: str, id_text: str) -> None:
    (tmp_path / "a.tsv").write_text(f"1\t\t{id_text}\n0\tnan\t\n1\t2\t{id_text}")
    ids, numbers, _ = read(tmp_path / "a.tsv", Columns(0, (1,), (2,), kind))
    assert numbers.ravel().tolist() == [0, 0, 2]
    assert ids[1, 0] == 0 != ids[0, 0] == ids[2, 0]
    assert kind == "text" or ids[0, 0] == 15


@pytest.mark.parametrize(
    ("data", "match"),
    cases(
        (b"", "no rows in .*a.tsv", "pandas: only empty files"),
        (HEAD.encode(), "no rows in .*a.tsv", "only a header"),
        (b"1\t2\t3\ta\n0\t1\t2\tb\n", "4 fields separated by .*column 4", "pandas: too few columns"),
        ((PLAIN + "1\t2\t3\ta\tb\tc").encode(), "row 5: 6 fields, but 5", "pandas: a row with more or fewer columns"),
        (PLAIN.replace("\n1\t", "\n\t").encode(), "row 1: a row without a label", "pandas: labels that are missing"),
        (PLAIN.replace("\n1\t", "\nnan\t").encode(), "row 1: a row without a label", "nan"),
        ((PLAIN + HEAD + PLAIN).encode(), "row 5: .*I1", "a header in the middle"),
        (PLAIN.replace("1.5", "1e39").encode(), "row 1: .*not a finite", "inf"),
        (PLAIN.replace("1.5", "1_5").encode(), "row 1: '_'", "underscore"),
        (PLAIN.replace("fa", '"fa"').encode(), "row 1: .*quoted", "pandas: quoted fields"),
        (('"' + HEAD + PLAIN).encode(), "row 0: .*quoted", "an open quotation mark"),
        (("la\r" + HEAD + PLAIN).encode(), "row 0: the character", "a broken header"),
        (PLAIN.replace("fa", "f\0a").encode(), "row 1: the character", "NUL"),
        (PLAIN.replace("\n", "\r").encode(), "row 0: the character", "line ends of old Macs"),
        (PLAIN.encode("utf-16"), "not UTF-8 text", "pandas: UTF-16"),
        (gzip.compress(PLAIN.encode())[:-9], "cannot read .*a.tsv", "DLRM: a truncated `.gz`"),
        (b"BZh91AY", "compressed with bzip2", "DLRM: `.bz2`, `.xz`, `.zst`"),
        (b"PK\3\4", "cannot read", "zip"),
        (packed("tar", "train.txt"), "extract an archive", "DLRM: `dac.tar.gz`"),
        (packed("zip", "train.txt"), "extract a zip", "pandas: `.zip`"),
        (arrays(X_int=np.ones((2, 2)), y=np.ones(2)), "write arrays with", "DLRM: its `.npz`"),
        (arrays(np.ones((2, 2))), "write arrays with write_log", "TorchRec: `.npy`"),
        refused=True,
    ),
)
def test_text_that_is_refused(tmp_path: Path, data: bytes, match: str) -> None:
    (tmp_path / "a.tsv").write_bytes(data)
    with refusal(match):
        read(tmp_path / "a.tsv")


@brought("logs", "Spark", "files with columns in another order (CSV with names, Parquet)", refused=True)
def test_files_with_another_order_of_columns_are_refused(tmp_path: Path) -> None:
    import pandas as pd

    frame = pd.DataFrame({"label": [0, 1], "I1": [2, 3], "I2": [4, 5], "C1": [6, 7], "C2": [8, 9]})
    swapped = frame[["label", "I1", "I2", "C2", "C1"]]
    for name, frames in (("a", (frame, swapped)), ("c", (frame, frame))):
        for place, one in enumerate(frames):
            one.to_csv(tmp_path / f"{name}{place}.csv", index=False)
            one.to_parquet(tmp_path / f"{name}{place}.parquet")
    (tmp_path / "c2.csv").write_text("0,2,4,6,8\n")  # without names
    assert len(read([tmp_path / one for one in ("c0.csv", "c2.csv", "c1.parquet")])[2]) == 5
    for ends in ((".csv", ".csv"), (".parquet", ".parquet"), (".csv", ".parquet")):
        with refusal("a1.* has 'C2' but .*a0.* has 'C1'.* the same columns"):
            read([tmp_path / f"a{place}{end}" for place, end in enumerate(ends)])


@pytest.mark.parametrize("given", ["a frame", None, b"a.tsv", 3, [["a.tsv"]]], ids=str)
@brought("logs", "pandas", "a `DataFrame` instead of paths", refused=True)
def test_what_is_no_path_is_refused(given: Any) -> None:
    import pandas as pd

    given = pd.DataFrame({"label": [1]}) if given == "a frame" else given
    with refusal("give paths of files; frame.to_parquet"):
        ClickLog(given)


def test_packed_text_is_read_on_from_where_the_last_rows_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = 3000
    (tmp_path / "a.gz").write_bytes(gzip.compress("".join(f"1\t{n:x}\n" for n in range(rows)).encode()))
    opened: list[Any] = []
    unpack = gzip.open
    monkeypatch.setattr(gzip, "open", lambda *given: opened.append(given) or unpack(*given))
    log = ClickLog(tmp_path / "a.gz", columns=Columns(0, (), (1,)), index=tmp_path)
    for start in range(0, rows, 100):
        assert log.__getitems__(range(start, start + 100))[0].ravel().tolist() == list(range(start, start + 100))
    assert len(opened) == 2, "once to count the rows, once to read them"
    asked = np.random.default_rng(0).integers(0, rows, 50).tolist()
    assert log.__getitems__(asked)[0].ravel().tolist() == asked
    assert log[-1][0].item() == rows - 1
    with pytest.raises(IndexError):
        log[rows]


def parquet(folder: Path, arrays: list[Any]) -> Path:
    pq.write_table(pa.table(arrays, names=[f"c{n}" for n in range(len(arrays))]), folder / "a.parquet")
    return folder / "a.parquet"


GAPS = [3, None, 250, 7, 0]


def whole(kind: Any, most: int = 1000) -> Any:
    return pa.array([None if one is None else one % most for one in GAPS], kind)


def hexadecimal(kind: Any) -> Any:
    return pa.array([None if one is None else f"{one:x}" for one in GAPS], kind)


def categories() -> Any:
    import pandas as pd

    return pa.array(pd.Series(GAPS, dtype="Int64").astype("category"))


def decimals(text: str) -> Any:
    return pa.array([None if one is None else decimal.Decimal(text.format(one)) for one in GAPS])


@pytest.mark.parametrize(
    "array",
    cases(
        (whole(pa.int64()), "Spark: Parquet: nullable integers of any width"),
        (whole(pa.uint64()), "Spark: Parquet: unsigned integers"),
        *(
            (whole(one, 100), str(one))
            for one in (pa.int8(), pa.uint8(), pa.int16(), pa.uint32(), pa.float16(), pa.float32())
        ),
        (pa.array([3, np.nan, 250, 7, 0]), "pandas: Parquet: integers that a gap turned into floats"),
        (categories, "pandas: Parquet: categories"),
        (decimals("{}"), "Spark: Parquet: integral decimals"),
        (decimals("{}.00"), "decimal 2"),
        (pa.array([True, None, False, True, False]), "pandas: Parquet: booleans"),
        (pa.array([None] * 5, pa.null()), "nothing but gaps"),
        (hexadecimal(pa.string()), "Spark: Parquet: `string`"),
        (hexadecimal(pa.large_string()), "pandas: Parquet: `large_string`"),
        (hexadecimal(pa.binary()), "Spark: Parquet: text as `binary`"),
        (hexadecimal(pa.string_view()), "view"),
        (hexadecimal(pa.string()).dictionary_encode(), "pandas: Parquet: dictionary-encoded text"),
        (pa.array([b"03", None, b"fa", b"07", b"00"], pa.binary(2)), "fixed"),
    ),
)
@pytest.mark.parametrize("kind", ["hex", "int", "text"])
def test_parquet_ids_are_those_of_integers(tmp_path: Path, array: Any, kind: str) -> None:
    array = array() if callable(array) else array
    values = [one.decode() if isinstance(one, bytes) else one for one in array.to_pylist()]
    wanted = [int(one, 16) if isinstance(one, str) else int(one) if one == one and one else 0 for one in values]
    texts = any(isinstance(one, str) for one in values)
    if texts and kind == "int":
        pytest.skip("hexadecimal digits are no such id")
    labels = pa.array([0, 1, 0, 1, 0])
    found = read(parquet(tmp_path, [labels, array]), Columns(0, (), (1,), kind))[0][:, 0]
    if texts and kind == "text":
        assert (found == 0).tolist() == [one is None for one in values]
    else:
        assert found.tolist() == wanted
    if not texts:  # the same column as numbers
        numbers = read(parquet(tmp_path, [labels, array]), Columns(0, (1,), ()))[1]
        assert numbers.tolist() == [[float(one)] for one in wanted]


@pytest.mark.parametrize(
    ("array", "match"),
    cases(
        (pa.array([[1], [2, 3]]), "list", "Spark: Parquet: lists"),
        (pa.array([{"a": 1}, {"a": 2}]), "struct", "struct"),
        (pa.array([datetime.date(2020, 1, 1)] * 2), "date32", "Spark: Parquet: dates"),
        (pa.array([datetime.datetime(2020, 1, 1)] * 2), "timestamp", "timestamp"),
        (pa.array([1, 2**63], pa.uint64()), str(2**63), "Spark: Parquet: unsigned ids from 2⁶³ on"),
        (pa.array([1.0, 2.5]), "2.5 is not an exact", "pandas: Parquet: ids with a fraction"),
        (pa.array([1, 2.0**53]), "not an exact", "pandas: Parquet: integers rounded to floats (above 2⁵³)"),
        (pa.array([1.0, np.inf]), "inf is not an exact", "inf"),
        (pa.array([decimal.Decimal("1.5"), None]), "data loss", "decimal"),
        (pa.array([b"a\0", b"b\0"], pa.binary(2)), "NUL", "Spark: Parquet: raw bytes"),
        (pa.array(["1_0", "x"]), "hexadecimal", "text"),
        refused=True,
    ),
)
def test_parquet_ids_that_are_refused_with_their_column(tmp_path: Path, array: Any, match: str) -> None:
    path = parquet(tmp_path, [pa.array([0, 1]), array])
    with refusal(f"a.parquet.*column 'c1'.*{match}"):
        read(path, Columns(0, (), (1,)))


@pytest.mark.parametrize(
    "array",
    cases(
        (pa.array([True, False, True]), "pandas: Parquet: boolean labels"),
        (pa.array(["1", "0", "1"]), "text"),
        (pa.array(["true", "false", "true"]).dictionary_encode(), "dictionary"),
        (pa.array([1.0, 0.0, 1.0], pa.float32()), "float"),
        (pa.array([1, 0, 1], pa.int8()), "int8"),
        (pa.array([decimal.Decimal(one) for one in (1, 0, 1)]), "decimal"),
    ),
)
def test_parquet_labels(tmp_path: Path, array: Any) -> None:
    assert read(parquet(tmp_path, [array, pa.array([5, 6, 7])]), Columns(0, (), (1,)))[2].tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("array", "match"),
    cases(
        (pa.array([True, None, False]), "a row without a label", "pandas: Parquet: boolean labels with a gap"),
        (pa.array([1, None, 0]), "a row without a label", "pandas: Parquet: integer labels with a gap"),
        (pa.array([1.0, np.nan, 0]), "a row without a label", "nan"),
        (pa.array(["1", None, "0"]), "a row without a label", "text with a gap"),
        (pa.array([None] * 3, pa.null()), "a row without a label", "null"),
        (pa.array([[1]] * 3), "has type list", "list"),
        refused=True,
    ),
)
def test_parquet_labels_that_are_refused(tmp_path: Path, array: Any, match: str) -> None:
    path = parquet(tmp_path, [array, pa.array([5, 6, 7])])
    with refusal(f"column 'c0': {match}"):
        read(path, Columns(0, (), (1,)))


def test_parquet_that_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table([pa.array([1]), pa.array([2])], names=["a", "a"]), tmp_path / "b.parquet")
    with pytest.raises(DataError, match="2 columns have the name 'a'"):
        read(tmp_path / "b.parquet", Columns(0, (), (1,)))
    with pytest.raises(DataError, match="is a folder: give the paths of the files in it"):
        read(tmp_path)
    with pytest.raises(DataError, match="2 columns, but columns= asks for column 4"):
        read(parquet(tmp_path, [pa.array([1]), pa.array([2])]))


def test_what_is_written_down_is_checked(tmp_path: Path) -> None:
    good = ([1], [0.5], True)
    for bad, match in (
        (([1.5], [0.5], True), "1.5 is not an exact"),
        (([2**63], [0.5], True), "not an exact"),
        (([1], [0.5], None), "type object"),
        (([1], [0.5], float("nan")), "a row without a label"),
        (([1, 2], [0.5], True), "inhomogeneous"),
    ):
        with pytest.raises(DataError, match=f"2 samples from 2 on: .*{match}"):
            write_log([good, good, good, bad], tmp_path / "made", rows=2)
    ids, numbers, clicked = ClickLog(write_log([good, good], tmp_path / "made")).__getitems__([0, 1])
    assert (ids.tolist(), numbers.tolist(), clicked.tolist()) == ([[1], [1]], [[0.5], [0.5]], [1, 1])
    assert (ids.dtype, numbers.dtype, clicked.dtype) == (torch.int64, torch.float32, torch.float32)
