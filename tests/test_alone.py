"""Tests marked ``alone`` have the machine to themselves, seen in three processes; and what is seen without that."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from alone import dealt, may_return

TESTS = """
import os, pathlib, time
import pytest

HERE = pathlib.Path(__file__).parent

@pytest.fixture(autouse=True)
def others(request):
    mine = HERE / f"in-{request.node.name}"
    mine.with_suffix(".new").write_text(str(os.getpid()))
    mine.with_suffix(".new").rename(mine)
    yield lambda: [path for path in HERE.glob("in-*]") if path != mine]
    mine.unlink()

@pytest.mark.parametrize("number", range(12))
def test_short(number):
    time.sleep(0.1)

@pytest.mark.slow
@pytest.mark.parametrize("number", range(8))
def test_long(number):
    assert os.sched_getscheduler(0) == os.SCHED_OTHER
    time.sleep(0.1)

@pytest.mark.alone
@pytest.mark.parametrize("number", range(5))
def test_alone(number, others):
    assert os.sched_getscheduler(0) == os.SCHED_OTHER
    for _ in range(10):
        for path in others():
            assert "short" in path.name
            assert IDLE, "nobody runs beside"
            try:
                assert os.sched_getscheduler(int(path.read_text())) == os.SCHED_IDLE
            except FileNotFoundError:
                pass  # that test is over
            (HERE / "seen").touch()
        time.sleep(0.005)
"""
WITHOUT = """
def pytest_collection_modifyitems(items):  # so that one process has these while the other has ordinary ones
    items.sort(key=lambda item: "alone" in item.name)
"""
ALONE = Path(__file__).with_name("alone.py").read_text()
WAITS = ALONE.replace('hasattr(os, "SCHED_IDLE") and may_return()', "False")


@pytest.mark.skipif(not hasattr(os, "sched_getscheduler"), reason="needs classes of scheduling to look at")
@pytest.mark.parametrize(
    ("conftest", "idle", "result"),
    [(ALONE, may_return(), r"25 passed"), (WAITS, False, r"25 passed"), (WITHOUT, False, r"\d+ failed, \d+ passed")],
    ids=["beside", "waits", "without"],
)
def test_who_is_alone_is_disturbed_by_nobody(tmp_path: Path, conftest: str, idle: bool, result: str) -> None:
    (tmp_path / "conftest.py").write_text(conftest)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    alone\n    slow\n")
    (tmp_path / "test_inside.py").write_text(f"IDLE = {idle}\n{TESTS}")
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "3", "--dist", "worksteal", "-p", "no:cacheprovider"],
        capture_output=True, text=True, timeout=100, cwd=tmp_path,
        env={k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")},
    )  # fmt: skip
    assert re.search(result, run.stdout), run.stdout
    assert (tmp_path / "seen").exists() == idle, "short tests run beside those that are alone"


def test_two_processes_begin_with_long_tests() -> None:
    places = [2, 1, 2, 0, 1, 2, 1, 2, 2, 0, 1, 2]  # alone: 3, 9; long: 1, 4, 6, 10
    assert dealt(places, 1) == [3, 9, 1, 4, 6, 10, 0, 2, 5, 7, 8, 11]
    assert dealt(places, 2) == [3, 9, 1, 4, 0, 2, 6, 10, 5, 7, 8, 11]
    assert dealt(places, 4) == [3, 9, 1, 4, 6, 10, 0, 2, 5, 7, 8, 11], "pieces of three have no room"
    assert dealt([1, 1, 2, 2], 2) == [0, 2, 1, 3]
    assert dealt([2, 2, 1], 3) == [0, 2, 1]
