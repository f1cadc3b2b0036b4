"""The compiled loops give what the plain ones give; where there is no compiler there is nothing to compare."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from threaded_graphs import features, some_graph

from uneven import UnevenWarning
from uneven.graph import native
from uneven.graph.adjacency import Adjacency
from uneven.graph.cutting import cut
from uneven.graph.edges import edges_of
from uneven.graph.pure.cut.expand import expand
from uneven.graph.pure.cut.greedy import hdrf, libra, placed, stream_order
from uneven.graph.reduce import bag_sums, row_sums

needs_file = pytest.mark.skipif(native.library() is None, reason="built without a compiler: the plain loops are used")
ROOT = Path(__file__).parents[3]


@needs_file
@pytest.mark.parametrize("seed", range(4))
def test_cuts_are_the_same_edge_by_edge(seed: int) -> None:
    edges = edges_of(some_graph(200, 1500, symmetric=seed % 2 == 0, seed=seed), 200)
    shares = (0.4, 0.3, 0.2, 0.1)
    given = (edges, shares)
    first = np.random.default_rng(seed).permutation(200)
    for beta in (0.0, 3.5):
        for mine, theirs in zip(native.expanded(*given, first, beta) or (), expand(*given, first, beta), strict=True):
            assert np.array_equal(mine, theirs)
    order = stream_order(len(edges), seed)
    for kind, rule in enumerate((libra, hdrf)):
        assert np.array_equal(native.greedy(kind, *given, order), placed(*given, order, rule))


@needs_file
def test_factors_of_any_type_and_layout_count_as_they_are() -> None:
    edges = edges_of(some_graph(symmetric=False), 60)
    rows, x = Adjacency.of(edges).into, features(60, 64).float()
    pairs = torch.rand(60, 2, dtype=torch.float64)
    for scale, weight in ((pairs[:, 0], None), (pairs[:, 0].float(), pairs[:, 1]), (pairs.float()[:, 1], None)):
        torch.testing.assert_close(row_sums(rows, x, scale, weight), bag_sums(rows, x, scale, weight).float())
    for few in ({"scale": torch.rand(59)}, {"weight": torch.rand(59)}):
        with pytest.raises(RuntimeError, match="59"):
            row_sums(rows, x, **few)


@needs_file
@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("width", [1, 7, 8, 16, 17, 64, 130, 256, 300, 602])
def test_sums_are_those_of_torch(level: int, width: int) -> None:
    if native.level() < level:
        pytest.skip("this processor has no such vectors")
    edges = edges_of(some_graph(symmetric=False), 60)
    rows = Adjacency.of(edges).into
    x, scale, weight = features(60, width).float(), torch.rand(60), torch.rand(60)
    dense = torch.zeros(60, 60).index_put_(
        (torch.tensor(edges.target), torch.tensor(edges.source)), torch.ones(()), True
    )
    threads = torch.get_num_threads()
    for some in (1, 2):
        torch.set_num_threads(some)
        torch.testing.assert_close(native.sums(rows, x, at=level), dense @ x, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(
            native.sums(rows, x, scale, weight, at=level),
            dense @ (x * weight[:, None]) * scale[:, None],
            rtol=1e-5,
            atol=1e-5,
        )
        torch.testing.assert_close(
            bag_sums(rows, x, scale, weight), native.sums(rows, x, scale, weight, at=level), rtol=1e-5, atol=1e-5
        )
    torch.set_num_threads(threads)
    assert native.sums(rows, x.double()) is None


@needs_file
@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize(("vertices", "width"), [(40_000, 128), (40_000, 120), (9_000, 64)])
@pytest.mark.parametrize("weighted", [False, True])
def test_sums_that_fit_in_no_cache_are_made_piece_by_piece_and_written_past_them(
    level: int, vertices: int, width: int, weighted: bool
) -> None:
    assert_large_sums(level, vertices, 3, width, weighted, packed=False)


@needs_file
@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("width", [256, 300])
@pytest.mark.parametrize("weighted", [False, True])
def test_what_is_gathered_often_is_copied_in_slices_first(level: int, width: int, weighted: bool) -> None:
    assert_large_sums(level, 6_000, 10, width, weighted, packed=True)


def assert_large_sums(level: int, vertices: int, degree: int, width: int, weighted: bool, packed: bool) -> None:
    if native.level() < level:
        pytest.skip("this processor has no such vectors")
    edges = edges_of(some_graph(vertices, degree * vertices), vertices)
    rows = Adjacency.of(edges).into
    x, scale = torch.randn(vertices, width), torch.rand(vertices)
    weight = torch.rand(vertices) if weighted else None
    assert native.packs(rows, vertices, width) is packed
    found = native.sums(rows, x, scale, weight, at=level)
    torch.testing.assert_close(found, bag_sums(rows, x, scale, weight), rtol=1e-5, atol=1e-5)


@needs_file
@pytest.mark.parametrize("vertices", [60, 9000])  # of malloc's memory, and of a workspace
def test_sums_are_float32_whatever_the_default_is(vertices: int) -> None:
    edges = edges_of(some_graph(vertices, 300), vertices)
    rows, x = Adjacency.of(edges).into, torch.randn(vertices, 33)
    right = bag_sums(rows, x)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        torch.testing.assert_close(row_sums(rows, x), right)
    finally:
        torch.set_default_dtype(before)


def test_without_the_file_all_works(monkeypatch: pytest.MonkeyPatch) -> None:
    edges = edges_of(some_graph(), 60)
    rows, x = Adjacency.of(edges).into, features(60, 33).float()
    with_it = row_sums(rows, x), *(cut(edges, method, (0.7, 0.3), 0, 1.0).order for method in ("ne", "libra"))
    monkeypatch.setenv("UNEVEN_NATIVE", "0")
    native.library.cache_clear()
    native.level.cache_clear()
    try:
        assert native.sums(rows, x) is None
        torch.testing.assert_close(row_sums(rows, x), with_it[0])
        for place, method in enumerate(("ne", "libra"), start=1):
            assert np.array_equal(cut(edges, method, (0.7, 0.3), 0, 1.0).order, with_it[place])
    finally:
        native.library.cache_clear()
        native.level.cache_clear()


def test_what_does_not_load_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "bad.so").write_text("no library")
    assert native.library(tmp_path / "bad.so") is None
    assert native.library(tmp_path / "none.so") is None


@needs_file
def test_a_file_compiled_from_another_source_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "native.cpp").write_text("// newer")
    monkeypatch.setattr(native, "SOURCE", tmp_path / "native.cpp")
    with pytest.warns(UnevenWarning, match=r"compiled from another native\.cpp.*install uneven again"):
        assert native.library.__wrapped__(native.LIBRARY) is None


def test_a_compiler_that_fails_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    base = ModuleType("hatchling.builders.hooks.plugin.interface")  # only pip's build environment has hatchling
    base.BuildHookInterface = object  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, base.__name__, base)
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    hook = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hook)
    (tmp_path / "wrong.cpp").write_text("this is no program")
    monkeypatch.setenv("CXX", "false")
    assert not hook.compiled(tmp_path / "wrong.cpp", tmp_path / "wrong.so")
    assert "wrong.cpp is left out" in capsys.readouterr().err
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", "")
    assert not hook.compiled(tmp_path / "wrong.cpp", tmp_path / "wrong.so")
