"""The bench of graphs on a graph of its own: what it compares agrees, and its figures are those of the parts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from uneven.errors import DataError, TrainingError, UnknownNameError
from uneven_bench.graph import kernels
from uneven_bench.graph.bench import HEADLINE, run
from uneven_bench.graph.graphs import FILES, bench_graph, drawn
from uneven_bench.graph.steps import learnt
from uneven_bench.graph.worker import judged
from uneven_bench.harness.figures import Spread, by_turns


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small graph in the place of the real ones: two groups with more edges inside than between."""
    draw = np.random.default_rng(0)
    y = np.arange(120) % 2
    inside = draw.integers(0, 60, (2, 500)) * 2 + draw.integers(0, 2, 500)
    between = draw.integers(0, 120, (2, 60))
    ends = np.concatenate([inside, between], axis=1)
    (tmp_path / "graphs").mkdir()
    for file, _ in FILES.values():
        np.savez(
            tmp_path / "graphs" / f"{file}.npz",
            edge_index=np.concatenate([ends, ends[::-1]], axis=1),
            x=draw.normal(size=(120, 6)).astype(np.float32) + y[:, None],
            y=y,
            split=np.arange(120, dtype=np.int8) % 3,
        )
    monkeypatch.setenv("UNEVEN_DATA", str(tmp_path))
    return tmp_path


def test_cuts_have_their_figures(data: Path) -> None:
    found = run(True, lambda *_: None, "cuts")
    assert set(HEADLINE) <= set(found)
    assert 0.0 < found["rows_vs_libra"] <= 1.5
    assert 1.0 <= found["cost_over_target"] < 1.5
    assert found["kernel_vs_dgl"] is None


@pytest.mark.filterwarnings("ignore:Sparse")  # torch, about what a rival does, where it is installed
def test_kernels_and_steps_agree(data: Path) -> None:
    one = bench_graph("amazon")
    for backward in (False, True):
        cell = kernels.kernel_cell(one, 7, 2, backward)
        assert {"ours", "bag"} <= set(cell["seconds"])
        assert cell["ratios"]["bag"] > 0
    assert min(learnt(one, 30).values()) > 0.8
    with pytest.raises(TrainingError, match="wrong makes other sums"):
        kernels._agree({"bag": lambda: torch.zeros(2), "wrong": lambda: torch.ones(2)})


def test_what_is_missing_is_said(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnknownNameError, match="stepp"):
        run(True, lambda *_: None, "stepp")
    monkeypatch.setenv("UNEVEN_DATA", str(data / "nowhere"))
    with pytest.raises(DataError, match="set UNEVEN_DATA to a folder with graphs/fb100_Cornell5"):
        bench_graph("cornell")


def test_turns_and_ratios() -> None:
    said: list[str] = []
    found = by_turns({"a": lambda: said.append("a"), "b": lambda: said.append("b")}, 2)
    assert [len(each) for each in found.values()] == [2, 2]
    assert said[-4:] == ["a", "b", "b", "a"]
    assert Spread.ratio([2.0, 4.0, 9.0], [1.0, 1.0, 1.0]).median == 4.0
    assert Spread.ratio([1.0, 2.0, 3.0, 4.0], [1.0] * 4).pair == [1.75, 3.25]


def test_a_drawn_graph_has_its_size() -> None:
    index = drawn(50, 400)
    assert index.shape == (2, 400)
    assert 0 <= int(index.min()) <= int(index.max()) < 50


def test_what_can_be_reached_counts_what_each_worker_has_to_do() -> None:
    cores = [0.6, 0.2]
    roots = {"equal": [40.0, 40.0], "ne": [60.0, 20.0], "regions": [70.0, 10.0]}
    cpu_s = {name: [0.01 + 0.001 * one for one in each] for name, each in roots.items()}
    step_s = {name: max(a / b for a, b in zip(each, cores, strict=True)) for name, each in cpu_s.items()}
    found = judged(step_s, cpu_s, roots, cores)
    assert found["fixed_cpu_s"] == pytest.approx(0.01)
    assert found["reachable_s"] == pytest.approx(0.1 / 0.8)  # both at work all the time
    assert found["of_limit"] == found["of_reachable"] == pytest.approx(0.125 / (0.08 / 0.6))
    assert found["gain"] == pytest.approx(0.25 / 0.15)
    slow = {name: [0.05 + 0.001 * one for one in each] for name, each in roots.items()}
    assert judged(step_s, slow, roots, cores)["reachable_s"] == pytest.approx(0.05 / 0.2)  # one has no time for more
