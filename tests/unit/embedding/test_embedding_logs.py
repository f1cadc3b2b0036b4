"""Rows of click logs: what a file says, each row once, and the rest of a pass after an interruption."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
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
