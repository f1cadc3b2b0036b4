"""Tests marked ``alone`` have the machine to themselves, seen in two processes; and what is seen without the lock."""

import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from alone import dealt

TESTS = """
import pathlib, time
import pytest

HERE = pathlib.Path(__file__).parent

@pytest.fixture(autouse=True)
def others(request):
    mine = HERE / f"in-{request.node.name}"
    mine.touch()
    yield lambda: [path.name for path in HERE.glob("in-*") if path != mine]
    mine.unlink()

@pytest.mark.parametrize("number", range(10))
def test_beside(number):
    time.sleep(0.1)

@pytest.mark.alone
@pytest.mark.parametrize("number", range(5))
def test_alone(number, others):
    for _ in range(10):
        assert not others()
        time.sleep(0.005)
"""
WITHOUT = """
def pytest_collection_modifyitems(items):  # so that one process has these while the other has ordinary ones
    items.sort(key=lambda item: "alone" in item.name)
"""


@pytest.mark.parametrize(("locked", "result"), [(True, r"15 passed"), (False, r"\d+ failed, \d+ passed")])
def test_nobody_is_beside_a_test_that_is_alone(tmp_path: Path, locked: bool, result: str) -> None:
    (tmp_path / "conftest.py").write_text(Path(__file__).with_name("alone.py").read_text() if locked else WITHOUT)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = alone\n")
    (tmp_path / "test_inside.py").write_text(TESTS)
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "worksteal", "-p", "no:cacheprovider"],
        capture_output=True, text=True, timeout=100, cwd=tmp_path,
        env={k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")},
    )  # fmt: skip
    assert re.search(result, run.stdout), run.stdout


def test_two_processes_begin_with_long_tests() -> None:
    lengths_s = [0, 5, 0, math.inf, 30, 0, 5, 0, 0, math.inf, 10, 0]
    assert dealt(lengths_s, 1) == [3, 9, 4, 10, 1, 6, 0, 2, 5, 7, 8, 11]
    assert dealt(lengths_s, 2) == [3, 9, 4, 1, 0, 2, 10, 6, 5, 7, 8, 11]
    assert dealt(lengths_s, 4) == [3, 9, 4, 1, 10, 6, 0, 2, 5, 7, 8, 11], "pieces of three have no room"
    assert dealt([5, 5, 0, 0], 2) == [0, 2, 1, 3]
    assert dealt([0, 0, 5], 3) == [2, 0, 1]
