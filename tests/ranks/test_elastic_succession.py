"""The launcher that keeps the store is lost with its worker: more than half are left, and go on with another store."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path

import pytest
import test_elastic
from test_elastic import HERE, free_port, run

pytestmark = [pytest.mark.timeout(200)]

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
    script = [HERE / "elastic_script.py", tmp_path, 1, 0, "until@0", "till@3", "fell@0:3"]
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


def test_the_store_that_follows_is_lost_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Worker 0 is lost with the first launcher, then 1 with the second: 2 and 3 go on with the store of the third."""
    (left := tmp_path / "left").mkdir()
    monkeypatch.setenv("TMPDIR", str(left))
    meeting = f"127.0.0.1:{free_port()}"
    script = [HERE / "elastic_script.py", tmp_path, 1, 0, "till@3", "until@0", "until@1", "fell@0:4", "fell@1:3"]
    bounds = ["--nproc", 1, "--elastic", "1:4", "--succession"]
    with (
        run(*bounds, "--rdzv-endpoint", meeting, "--run-dir", tmp_path / "run", *script) as a,
        run("--join", meeting, "--run-dir", tmp_path / "second", *script) as b,
    ):
        while not (tmp_path / "1.jsonl").exists():
            assert (a.poll(), b.poll()) == (None, None)
            time.sleep(0.05)
        with run("--join", meeting, "--nproc", 2, "--run-dir", tmp_path / "third", *script) as c:
            said = c.communicate(150)[1]
    assert c.returncode == 0, said
    assert "this launcher keeps it now; others join with `uneven run --join 127.0.0.1:" in said, said
    epochs = max(epoch for epoch, _ in test_elastic.steps(tmp_path)) + 1
    test_elastic.check(tmp_path, epochs, {2, 3})
    assert [left for left, came in test_elastic.noted(tmp_path / "third", 2) if left] == [(0,), (1,)]
