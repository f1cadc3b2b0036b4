"""The first launcher is lost with its worker: those of another one are more than half, and go on with its store."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path

import pytest
import test_elastic
from test_elastic import HERE, free_port
from test_elastic_ways import run

pytestmark = [pytest.mark.slow(5), pytest.mark.timeout(200)]

NEXT = re.compile(r"goes on with that of another launcher, ([\d.]+:\d+)")


def next_store(run: Path) -> str:
    """Where the workers go on, as one of them says in its journal."""
    while True:
        for path in run.glob("**/*.jsonl"):
            if found := NEXT.search(path.read_text()):
                return found[1]
        time.sleep(0.05)


def test_a_majority_goes_on_and_lets_others_join(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No sample is lost, and the model is one process's. Worker 3 joins at the store of the second launcher."""
    (left := tmp_path / "left").mkdir()
    monkeypatch.setenv("TMPDIR", str(left))  # of a launcher that is killed
    meeting = f"127.0.0.1:{free_port()}"
    script = [HERE / "elastic_script.py", tmp_path, 1, 0, "until@0", "till@3", "fell@3"]
    bounds = ["--nproc", 1, "--elastic", "1:4", "--succession"]
    first = [*bounds, "--rdzv-endpoint", meeting, "--run-dir", tmp_path / "run", *script]
    joined = tmp_path / "joined"
    with (
        run(*first) as a,
        run("--join", meeting, "--nproc", 2, "--run-dir", joined, *script) as b,
        run("--join", next_store(joined), "--run-dir", tmp_path / "later", *script) as c,
    ):
        said, said_there, said_later = (one.communicate(100)[1] for one in (a, b, c))
    assert a.returncode == -signal.SIGKILL, said
    assert (b.returncode, c.returncode) == (0, 0), said_there + said_later
    assert "this launcher keeps it now; others join with `uneven run --join 127.0.0.1:" in said_there, said_there
    epochs = max(epoch for epoch, _ in test_elastic.steps(tmp_path)) + 1
    test_elastic.check(tmp_path, epochs, {1, 2, 3})
    (change,) = [left for left, came in test_elastic.noted(joined, 1) if left]
    assert change == (0,)
