"""``make gpu`` without a GPU: it refuses by name; and its parts, on a few small tests and a bench that is played."""

import json
import sys
from pathlib import Path

import pytest
import torch

from uneven_bench.gpu import outcomes, record
from uneven_bench.gpu.record import Part

MACHINE = {"gpus": [{"name": "Fake 1", "memory_bytes": 1}], "torch": {"version": str(torch.__version__)}}
TESTS = """
import pytest
def test_works(): pass
def test_fails(): assert 1 == 2
@pytest.mark.skip(reason="needs two")
def test_waits(): pass
@pytest.fixture
def torn():
    yield
    raise ValueError("torn down wrongly")
def test_is_left(torn): pass
"""
REFRESH = {"second_order": {"mlp": {"K-FAC": {"refresh": 0.3}, "kfac-pytorch": {"refresh": 0.2}}}}

WRONG = "ValueError: no such share"


def small_tests(folder: Path) -> Part:
    (folder / "test_small.py").write_text(TESTS)
    line = [sys.executable, "-m", "pytest", "-p", outcomes.__name__, "-p", "no:cacheprovider", "-q"]
    return Part("tests", [*line, "--rootdir", str(folder), "-c", "/dev/null", "test_small.py"], 60.0)


def python(name: str, code: str, within_s: float = 60.0) -> Part:
    return Part(name, [sys.executable, "-c", code], within_s)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_it_refuses_by_name_without_a_gpu(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert record.main(["--out", str(tmp_path / "gpu.json")]) == 2
    said = capsys.readouterr().err
    assert f"make gpu needs an NVIDIA or AMD GPU, and torch {torch.__version__} (build for " in said
    assert not (tmp_path / "gpu.json").exists()


def test_one_file_has_machine_outcomes_and_figures(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(record, "ROOT", tmp_path)
    out = tmp_path / "build" / "gpu.json"
    asked = [
        small_tests(tmp_path),
        python("second-order", f"print('a table'); print({json.dumps(REFRESH)!r})"),
        python("pair", "raise ValueError('no such share')"),
        python("unlike", "import time; time.sleep(60)", within_s=0.2),
    ]
    assert record.main(["--out", str(out)], lambda: MACHINE, lambda: asked) == 1
    found = json.loads(out.read_text())
    assert found["hardware"] == MACHINE
    assert {name.partition("::")[2]: one["outcome"] for name, one in found["tests"].items()} == {
        "test_works": "passed",
        "test_fails": "failed",
        "test_waits": "skipped",
        "test_is_left": "failed",
    }
    assert found["bench"] == REFRESH
    assert found["left_out"] == {"pair": f"it ended with exit code 1: {WRONG}", "unlike": "it was killed after 0 s"}
    assert set(found["seconds"]) == {"tests", "second-order", "pair", "unlike"}
    said = capsys.readouterr().out
    assert "Fake 1: 1 passed, 2 failed, 1 skipped" in said
    assert "skipped test_small.py::test_waits: Skipped: needs two" in said
    assert f"left out pair: it ended with exit code 1: {WRONG}" in said
    assert "mlp: a refresh of K-FAC takes 1.50 × kfac-pytorch's (200 ms)" in said


def test_a_part_without_time_is_left_out_by_name(tmp_path: Path) -> None:
    found = record.record(tmp_path / "gpu.json", MACHINE, [python("pair", ""), python("unlike", "")], limit_s=-1.0)
    assert found["left_out"] == {"pair": "no time was left", "unlike": "no time was left"}


def test_all_parts_fit_nine_minutes_and_name_what_is_there() -> None:
    tests, *cases = record.parts()
    assert record.LIMIT_S < 9 * 60
    files = [word for word in tests.line if word.startswith("tests")]
    assert "tests/gpu" in files
    assert "tests/unit/run/measure/test_take_profile.py" in files
    assert all((record.ROOT / word).exists() for word in files)
    assert [one.name for one in cases] == list(record.CASES)
