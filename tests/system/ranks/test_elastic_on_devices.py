"""Members of an elastic run whose tensors go through host memory, next to members that need no copies."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_elastic import HERE, await_door, check, free_port, noted, run

pytestmark = pytest.mark.timeout(300)


def test_killed_joined_and_left_with_copies_on_some(tmp_path: Path) -> None:
    """As in ``tests/ranks/test_elastic.py``; workers 0, 2 and 4 copy, as on a GPU, and 1 and 3 do not."""
    folder = tmp_path / "run"
    copies = [f"staged@{worker}" for worker in (0, 2, 4)]
    faults = ["kill@3:7", "after@1:12", "late@0:12", "door@33", "leave@2:44", "slow@0:44", "kill@0:60"]
    script = [HERE / "elastic_script.py", tmp_path, 3, 0, *faults, *copies]
    meeting = f"127.0.0.1:{free_port()}"
    with run("--nproc", 4, "--elastic", "1:4", "--rdzv-endpoint", meeting, "--run-dir", folder, *script) as whole:
        await_door(whole, tmp_path)
        with run("--join", meeting, "--run-dir", folder, *script) as joins:
            said, said_there = whole.communicate(200)[1], joins.communicate(100)[1]
    assert (whole.returncode, joins.returncode) == (0, 0), said + said_there
    check(tmp_path, 3, {4})
    assert noted(folder, 4) == [((2,), ()), ((0,), ())]
