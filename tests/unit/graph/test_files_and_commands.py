"""Graphs in files, and the command that cuts them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from uneven import graph
from uneven.cli import main
from uneven.cli.graph_files import read_graph
from uneven.cli.graph_page import described
from uneven.errors import ConfigError, DataError


def write(path: Path) -> None:
    """A ring of 40 with features in compressed rows."""
    n = 40
    np.savez(
        path,
        indptr=np.arange(n + 1) * 2,
        indices=np.stack([(np.arange(n) - 1) % n, (np.arange(n) + 1) % n], axis=1).ravel(),
        x_indptr=np.arange(n + 1),
        x_indices=np.arange(n) % 3,
        x_dim=5,
        y=np.array([0, 1, -1, 1] * 10, np.int8),
        split=np.arange(n) % 3,
    )


def test_a_file_is_cut_and_described(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "ring.npz")
    words = ["--capacities", "3,1", "--beta", "0"]
    with pytest.raises(SystemExit) as ended:
        main(["graph", "partition", str(tmp_path / "ring.npz"), str(tmp_path / "p"), *words])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert "40 vertices, 80 directed edges, cut into 2 by ne, seed 0" in shown
    assert "tensors: split, test_mask, train_mask, val_mask, x, y" in shown
    with pytest.raises(SystemExit):
        main(["graph", "inspect", str(tmp_path / "p")])
    assert capsys.readouterr().out == shown
    with pytest.raises(SystemExit):
        main(["graph", "inspect", str(tmp_path / "p"), "--format", "json"])
    told = json.loads(capsys.readouterr().out)
    assert (told["vertices"], told["edges"], told["method"]) == (40, 80, "ne")
    assert sum(part["edges"] for part in told["parts"]) == 80
    g = graph.load(tmp_path / "p", rank=0, size=1)
    assert g.x.shape == (40, 5)
    assert g.gather(g.x.argmax(1)).tolist() == [one % 3 for one in range(40)]  # type: ignore[union-attr]
    assert int(g.tensor("train_mask").sum()) == 11  # of 14, three have no label


def test_a_part_has_no_more_roots_than_vertices(tmp_path: Path) -> None:
    store = graph.partition(torch.tensor([[0, 1, 2], [1, 2, 0]]), 12, path=tmp_path / "p", shares=(2, 1, 1))
    rows = [line.split() for line in described(store).splitlines() if line[:5].strip().isdigit()]
    assert sum(int(row[4]) for row in rows) == 12
    assert all(int(row[3]) >= int(row[4]) for row in rows)


def test_fewer_features_are_the_commonest(tmp_path: Path) -> None:
    write(tmp_path / "ring.npz")
    found = read_graph(tmp_path / "ring.npz", most_features=2).tensors["x"]
    assert found.sum(0).tolist() == [14, 13]


def test_what_is_no_graph_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "x.npz", x=np.zeros(3))
    with pytest.raises(DataError, match="has x, but no edge_index, and no indptr"):
        read_graph(tmp_path / "x.npz")
    (tmp_path / "text.npz").write_text("no")
    with pytest.raises(DataError, match=r"text\.npz"):
        read_graph(tmp_path / "text.npz")
    for line, told in (
        (["p"], "give --parts 4, or --capacities"),
        (["p", "--capacities", "3;1"], "give numbers with commas"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(["graph", "partition", str(tmp_path / "x.npz"), *line])
        assert ended.value.code == 2
        assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "tensor", "why"),
    [
        ("x", torch.tensor(1.0), r"has shape \(\): give 4 rows"),
        ("x", torch.zeros(3, 2), r"has shape \(3, 2\): give 4 rows"),
        ("x", torch.eye(4).to_sparse(), "give a dense tensor"),
        ("x", torch.eye(4).bfloat16(), "float32 for bfloat16"),
        ("x", np.array(["a", "b", "c", "d"]), "give numbers"),
        ("x", [1, 2, 3, 4], "type list"),
        ("../source", torch.zeros(4), "leave slashes out"),
    ],
)
def test_a_tensor_that_cannot_be_kept_is_refused_and_an_earlier_cut_stays(
    tmp_path: Path, name: str, tensor: object, why: str
) -> None:
    ring = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
    graph.partition(ring, 4, path=tmp_path / "p", tensors={"x": np.arange(4.0)})
    with pytest.raises(ConfigError, match=why):
        graph.partition(ring, 4, path=tmp_path / "p", tensors={name: tensor})  # type: ignore[dict-item]
    g = graph.load(tmp_path / "p", rank=0, size=1)
    assert g.gather(g.x).tolist() == [0.0, 1.0, 2.0, 3.0]  # type: ignore[union-attr]
