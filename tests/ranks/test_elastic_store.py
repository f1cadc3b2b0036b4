"""``uneven store`` keeps the store of an elastic run: the launcher that came first may be lost, the store may not."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import test_elastic
from test_elastic import HERE, free_port, run

from uneven.runtime.membership_board import WORKERS
from uneven.runtime.tcp_store import reach
from uneven_bench.forked.scripts import Script

pytestmark = pytest.mark.timeout(300)


@contextmanager
def kept(port: int, *words: object) -> Iterator[Script]:
    """The store, once it answers."""
    imported = ("uneven.cli.store", "uneven.runtime.launch.store_server")
    with Script(["-m", "uneven", "store", "--port", port, *words], imported=imported) as store:
        reach("127.0.0.1", port, 100.0)
        yield store


def await_workers(port: int, count: int) -> None:
    """Until launchers have asked for the numbers of so many workers."""
    board = reach("127.0.0.1", port, 100.0)
    while board.add(WORKERS, 0) < count:
        time.sleep(0.02)


def test_the_first_launcher_is_lost_with_its_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers 0 and 1 of two launchers begin the run, and 2 joins. No sample is lost, the model is one process's."""
    (left := tmp_path / "left").mkdir()
    monkeypatch.setenv("TMPDIR", str(left))  # of the launcher that is killed
    port = free_port()
    joins = ["--join", f"127.0.0.1:{port}"]
    script = [HERE / "elastic_script.py", tmp_path, 1, 0, "until@0", "till@2", "fell@0:3"]
    with (
        kept(port, "--elastic", "2:4") as store,
        run(*joins, "--run-dir", tmp_path / "first", *script) as a,
    ):
        await_workers(port, 1)
        with run(*joins, "--nproc", 2, "--run-dir", tmp_path / "second", *script) as b:
            said, said_there = a.communicate(100)[1], b.communicate(100)[1]
            printed, complaint = store.communicate(100)
    assert (a.returncode, b.returncode, store.returncode) == (-signal.SIGKILL, 0, 0), said + said_there + complaint
    assert printed == (
        f"uneven: the run's store is at 127.0.0.1:{port}; start workers with "
        f"`uneven run --join 127.0.0.1:{port} SCRIPT`\n"
    )
    epochs = max(epoch for epoch, _ in test_elastic.steps(tmp_path)) + 1
    test_elastic.check(tmp_path, epochs, {1, 2})
    assert test_elastic.noted(tmp_path / "second", 1) == [((), (2,)), ((0,), ())]


def test_without_the_store_the_run_ends_with_an_error_that_names_it(tmp_path: Path) -> None:
    port = free_port()
    script = [HERE / "elastic_script.py", tmp_path, 1, 0, "until@0"]
    words = ["--join", f"127.0.0.1:{port}", "--run-dir", tmp_path / "run"]
    with kept(port, "--elastic", "1:4") as store, run(*words, *script) as it:
        while not (tmp_path / "0.jsonl").exists():
            assert it.poll() is None, it.communicate()[1]
            time.sleep(0.02)
        store.send_signal(signal.SIGINT)
        complaint, said = store.communicate(100)[1], it.communicate(100)[1]
    assert (store.returncode, it.returncode) == (128 + signal.SIGINT, 1), complaint + said
    assert "stopped by SIGINT, and worker 0 cannot continue without the store" in complaint
    assert "worker 0 cannot reach the store of the run: its process ended" in said, said
