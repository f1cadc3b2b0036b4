"""Rows of click logs: what a file says, each row once, and the rest of a pass after an interruption."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

import uneven
from uneven.embedding import ClickLog, Columns, EmbeddingBagCollection, Table, write_log
from uneven.embedding.pure.columns import read_text
from uneven.errors import ConfigError, DataError

SMALL = Columns(clicked=0, numbers=(1, 2), ids=(3, 4))
ROWS = 700  # of more than two steps


def text(rows: int, *, begin: int = 0, end: str = "\n") -> str:
    lines = [f"{n % 2}\t{n / 4 if n % 5 else ''}\t-3\t{n:x}\t{(n * 7919) % 1000:X}" for n in range(begin, begin + rows)]
    return "\n".join(lines) + end


def ids_of(n: Any) -> Any:
    return torch.stack([torch.as_tensor(n), torch.as_tensor(n) * 7919 % 1000], -1)


@pytest.mark.parametrize("rows", [1, 255, 256, 257, 512, ROWS])
@pytest.mark.parametrize("end", ["\n", ""])
def test_rows_are_what_the_text_says_wherever_they_lie(tmp_path: Path, rows: int, end: str) -> None:
    for number, begin in enumerate((0, rows)):
        (tmp_path / f"{number}.tsv").write_text(text(rows, begin=begin, end=end))
    log = ClickLog(sorted(tmp_path.glob("*.tsv")), columns=SMALL)
    assert len(log) == 2 * rows
    made = np.random.default_rng(0)
    for asked in (range(2 * rows), made.integers(0, 2 * rows, 20).tolist()):
        ids, numbers, clicked = log.__getitems__(list(asked))
        n = torch.tensor(list(asked))
        assert torch.equal(ids, ids_of(n))
        assert torch.equal(clicked, (n % 2).float())
        assert torch.equal(numbers[:, 0], torch.where(n % 5 == 0, 0, n / 4))
        assert (numbers[:, 1] == -3).all()
    assert torch.equal(log[2 * rows - 1][0], ids_of(2 * rows - 1))


HISTORY = [[12, 7, 99], [], [5], [1, 2, 3, 4, 5]]


@pytest.mark.parametrize("kind", ["int", "hex", "text"])
@pytest.mark.parametrize("form", [".tsv", ".csv", "text.parquet", "list.parquet", "numbers.parquet"])
def test_a_column_of_ids_in_order_is_a_sequence(tmp_path: Path, form: str, kind: str) -> None:
    words = [" ".join(map(str, one)) for one in HISTORY]
    path = tmp_path / f"a{form}"
    if form.endswith("parquet"):
        lists = {"numbers": HISTORY, "list": [[str(x) for x in one] for one in HISTORY], "text": words}
        history: list[Any] = lists[form.split(".")[0]]  # type: ignore[assignment]
        arrays = [pa.array([0, 1, 0, 1]), pa.array(history), pa.array([8, 9, 8, 9])]
        pq.write_table(pa.table(arrays, names=["late", "history", "item"]), path)
    else:
        divider = "," if form == ".csv" else "\t"
        path.write_text("\n".join(divider.join((str(n % 2), one, str(8 + n % 2))) for n, one in enumerate(words)))
    log = ClickLog(path, columns=Columns(clicked=0, numbers=(), ids=(2,), sequences={1: 3}, kind=kind))
    ids, _, clicked = log.__getitems__([3, 0, 1, 2])
    assert clicked.tolist() == [1, 0, 1, 0]
    plain = ClickLog(path, columns=Columns(clicked=0, numbers=(), ids=(2,), kind=kind))
    assert torch.equal(ids[:, 0], plain.__getitems__([3, 0, 1, 2])[0][:, 0])
    known = {"int": int, "hex": lambda x: int(str(x), 16), "text": lambda x: _hashed(str(x))}[kind]
    known = int if form.startswith("numbers") else known
    wanted = [[known(x) for x in one[-3:]] + [-1] * (3 - len(one[-3:])) for one in (HISTORY[3], *HISTORY[:3])]
    assert ids[:, 1:].tolist() == wanted


def _hashed(word: str) -> int:
    line = f"0\t{word}".encode()
    return int(read_text([line], Columns(clicked=0, numbers=(), ids=(1,), kind="text"), "a", 0, 2).ids[0, 0])


@pytest.mark.parametrize(("most", "text", "why"), [(0, "1", "keep 1 id or more, not 0"), (3, "1 x", "row 0: .*'x'")])
def test_sequences_that_cannot_be_are_refused(tmp_path: Path, most: int, text: str, why: str) -> None:
    (tmp_path / "a.tsv").write_text(f"1\t{text}\n")
    with pytest.raises((ConfigError, DataError), match=why):
        _ = ClickLog(tmp_path / "a.tsv", columns=Columns(0, (), (), sequences={1: most}))[0]


def test_numbers_are_no_sequences(tmp_path: Path) -> None:
    pq.write_table(pa.table({"late": [0, 1], "history": [3, 4]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="'history': has type int64: give lists, or text with spaces"):
        ClickLog(tmp_path / "a.parquet", columns=Columns(0, (), (), sequences={1: 5}))


def test_crosses_and_sequences_of_a_log_are_looked_up(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("".join(f"{n % 2},{n},{n % 3},{n} {n + 1}\n" for n in range(40)))
    log = ClickLog(tmp_path / "a.csv", columns=Columns(0, (), (1, 2), kind="int", sequences={3: 4}))
    items = Table(50, 4, "item", feature_names=["item", "history"], pooling="mean", no_id=-1)
    tables = EmbeddingBagCollection([items, Table(5, 4, "day"), Table(400, 4, "cross", crossed=("item", "day"))])
    ids, _, _ = log.__getitems__(range(40))
    found = tables({"item": ids[:, 0], "day": ids[:, 1], "history": ids[:, 2:]})
    rows = tables.to_state_dict()["embedding_bags.item.weight"]
    assert torch.allclose(found["history"][7], (rows[7] + rows[8]) / 2)
    assert found["cross"].shape == (40, 4)
    tables.close()


def test_places_that_were_written_down_are_found_again(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text(text(ROWS))
    index = tmp_path / "index"
    for _ in range(2):
        log = deepcopy(ClickLog([path], columns=SMALL, index=index))
        assert torch.equal(log[600][0], ids_of(600))
    assert len(list(index.iterdir())) == 1
    path.write_text(text(ROWS + 1))
    assert len(ClickLog([path], columns=SMALL, index=index)) == ROWS + 1, "another file under its name"


def test_parquet_and_what_was_written_down_say_the_same(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text(text(ROWS))
    log = ClickLog([tmp_path / "a.tsv"], columns=SMALL)
    others = [ClickLog(write_log((log[n] for n in range(ROWS)), tmp_path / "made", rows=300))]
    if pytest.importorskip("pyarrow"):
        import pyarrow as pa
        import pyarrow.parquet as pq

        ids, numbers, clicked = log.__getitems__(list(range(ROWS)))
        columns = [clicked, numbers[:, 0], numbers[:, 1], ids[:, 0]]
        arrays = [pa.array(one.numpy()) for one in columns] + [pa.array([f"{one:x}" for one in ids[:, 1].tolist()])]
        pq.write_table(pa.table(arrays, names=list("abcde")), tmp_path / "a.parquet", row_group_size=256)
        others.append(ClickLog([tmp_path / "a.parquet"], columns=SMALL))
    asked = [*range(200, 600), 3, 699]
    for other in map(deepcopy, others):  # as for a reader process: without what is held
        assert len(other) == ROWS
        assert all(torch.equal(a, b) for a, b in zip(log.__getitems__(asked), other.__getitems__(asked), strict=True))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tables = EmbeddingBagCollection([Table(ROWS, 4, "a"), Table(1000, 4, "b")])
        self.top = nn.Linear(8, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.top(self.tables(ids).values())


def test_a_pass_goes_on_where_it_was_interrupted(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text(text(ROWS))
    seen: list[int] = []
    state = None
    for most in (4, 999):
        model = Model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        session = uneven.Session(sync="shadow:ma", balance="even")
        session.setup(model, optimizer)
        log = ClickLog([tmp_path / "a.tsv"], columns=SMALL)
        loader = session.loader(log, 32, shuffle=False, collate_fn=log.collate, ids=lambda batch: batch[0], ahead=1)
        if state is not None:
            session.load_state_dict(state)
        for number, (ids, _, _) in enumerate(loader, 1):
            model(ids).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            seen += ids[:, 0].tolist()
            if number == most:
                break
        state = session.state_dict()
        session.close()
        model.tables.close()
    assert seen == list(range(ROWS)), "each once"


def test_a_text_s_id_is_the_same_wherever_it_stands() -> None:
    columns = Columns(clicked=0, numbers=(), ids=(1, 2), kind="text")
    rows = read_text([b"1\tN14228\tUA", b"0\tUA\t", b"1\tN14228x\t0"], columns, "here", 0, 3)
    assert rows.ids[0, 1] == rows.ids[1, 0]
    assert rows.ids[1, 1] == 0
    assert len(set(rows.ids.flatten().tolist())) == 5
    assert rows.ids.min() >= 0
    assert read_text([b"1\t-5\t"], Columns(0, (), (1, 2), "int"), "here", 0, 3).ids.tolist() == [[-5, 0]]
    assert len(read_text([], columns, "here", 0, 3).clicked) == 0


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("1\t2\t3", "row 2 and|row 2, 0 rows later|3 fields"),
        ("1\t2\t3\tzz\t1", "'z' is not a hexadecimal digit"),
        ("1\tx\t3\t1\t1", "could not convert"),
        ("1\t2\t3\t1234567890abcdef\t1", "more than 15"),
    ],
)
def test_a_malformed_row_is_named(tmp_path: Path, line: str, why: str) -> None:
    (tmp_path / "a.tsv").write_text(text(2) + line + "\n")
    log = ClickLog([tmp_path / "a.tsv"], columns=SMALL)
    with pytest.raises(DataError, match=why):
        log.__getitems__([1, 2])


def test_what_cannot_be_a_log_is_refused(tmp_path: Path) -> None:
    for made, why in (
        (lambda: ClickLog([]), "at least one file"),
        (lambda: Columns(clicked=1), "twice"),
        (lambda: Columns(kind="octal"), "'octal'"),
        (lambda: ClickLog([tmp_path / "none.tsv"]), "cannot read"),
        (lambda: write_log([], tmp_path / "made"), "no sample"),
    ):
        with pytest.raises((ConfigError, DataError), match=why):
            made()
    (tmp_path / "a.tsv").write_text("1\t2\n")
    with pytest.raises(DataError, match="column 39"):
        ClickLog([tmp_path / "a.tsv"]).__getitems__([0])
