"""``uneven run`` when a worker dies: the others continue where their policy can do without it, and else all end."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from session_parts import N

from uneven import journal
from uneven.policy.core.records import EventRecord
from uneven_bench.forked.scripts import Script

pytestmark = pytest.mark.timeout(300)

HERE = Path(__file__).parent
KILLED = 128 + signal.SIGKILL


def started(
    stack: ExitStack, folder: Path, runs: dict[str, list[object]], *, merged: bool = False
) -> dict[str, Script]:
    """Run directory → ``uneven run`` of two forked workers with these words; all of them side by side."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path]), "OMP_NUM_THREADS": "1"}
    env["TMPDIR"] = str(folder)  # a rank 0 that is killed leaves the folder of its parameter server
    words = ["-m", "uneven_bench.forked.run", "run", "--nproc", 2, "--run-dir"]
    scripts = {}
    for name, more in runs.items():
        scripts[name] = stack.enter_context(Script([*words, name, *more], cwd=folder, env=env, merged=merged))
        stack.callback(stop, scripts[name])
    return scripts


def stop(script: Script) -> None:
    """Workers are in process groups of their own, which only their launcher ends."""
    script.send_signal(signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        script.wait(30)


def ends(folder: Path, runs: dict[str, list[object]]) -> dict[str, tuple[int, str]]:
    """Run directory → exit code and errors."""
    with ExitStack() as stack:
        scripts = started(stack, folder, runs)
        return {name: (one.wait(100), one.communicate(100)[1]) for name, one in scripts.items()}


def training(sync: str, dying: int) -> list[object]:
    return ["--sync", sync, "--balance", "even", HERE / "dying_script.py", dying]


def events(run: Path, rank: int) -> list[str]:
    return [one.event for one in journal.read(run).ranks[rank] if isinstance(one, EventRecord)]


def test_the_others_go_on_through_the_shared_copy(tmp_path: Path) -> None:
    code, said = ends(tmp_path, {"asp": training("asp", dying=1)})["asp"]
    assert code == 0, said
    assert re.search(r"uneven: rank 1 \(process \d+\) was killed by SIGKILL; the others continue without", said), said
    end, summary = said.strip().splitlines()[-2:]
    assert end == "uneven: the run has finished without rank 1 (it was killed by SIGKILL)"
    assert " samples/s" in summary
    first, *whole = json.loads((tmp_path / "asp" / "0.json").read_text())
    assert len(set(first)) == len(first) < N
    assert [sorted(one) for one in whole] == [list(range(N))] * 2, "then it takes every sample"
    told = events(tmp_path / "asp", 0)
    assert told.count("lost") == 1
    assert told[-1] == "end"
    assert not list((tmp_path / "asp").glob("expendable-0*")), "outside of the training a death stops the others"


def test_all_end_where_workers_meet_and_where_the_copy_was(tmp_path: Path) -> None:
    runs = {"ma:every=2": training("ma:every=2", dying=1), "held": training("asp", dying=0)}
    found = ends(tmp_path, runs)
    code, said = found.pop("held")
    assert code == KILLED, said
    assert re.search(r"error: rank 0 .* has been ended: it was the parameter server; `uneven", said)
    for sync, (code, said) in found.items():
        assert code == KILLED, said
        assert re.search(r"error: rank 1 \(process \d+\) was killed by SIGKILL, so the run has been ended;", said), said
        assert not (tmp_path / sync / "0.json").exists()


# Workers that need no torch are there at once; they say what their death means as a session does.
WORKER = """
import os, sys, time
from pathlib import Path
import signal
from uneven.runtime.rundir import Expendable, mark_expendable
run, rank, start = Path(os.environ["UNEVEN_RUN"]), int(os.environ["RANK"]), os.environ["TORCHELASTIC_RESTART_COUNT"]

def after(name):
    while not (run / name).exists(): time.sleep(0.01)

def stops(why=""):  # for as long as an exchange may wait, and then some
    mark_expendable(run, rank, Expendable(why, 0.5))
    os.kill(os.getpid(), signal.SIGSTOP)

def dies(code):
    mark_expendable(run, rank)
    (run / "said").touch()
    os._exit(code)

{then}
"""
CASES = {
    # rank 1 lost, and rank 0 dies outside of the training when the launcher has told that
    "outside": "dies(5) if rank else (after('told'), os._exit(7))",
    "zero": "after('said') if rank else dies(5)",
    "nobody": "dies(5 + rank)",
    "stopped": "stops() if rank else after('told')",
    "held": "dies(5) if rank else stops('it held the copy')",
    "again": "(dies(5) if rank else (after('told'), os._exit(7))) if start == '0' else None",
}


def test_what_is_left_at_the_end_decides_the_exit_code(tmp_path: Path) -> None:
    for name, then in CASES.items():
        (tmp_path / f"{name}.py").write_text(WORKER.format(then=then))
    runs: dict[str, list[object]] = {name: [f"{name}.py"] for name in CASES}
    runs["again"] = ["--max-restarts", 1, *runs["again"]]
    with ExitStack() as stack:
        scripts = started(stack, tmp_path, runs, merged=True)
        for name, one in scripts.items():
            while "the others continue" not in one.printed() and one.poll() is None:
                time.sleep(0.02)
            (tmp_path / name / "told").touch()
        found = {name: (one.wait(60), one.printed()) for name, one in scripts.items()}
    before = "before that, the others had continued without rank 1 (it ended with exit code 5)"

    code, said = found["outside"]
    assert code == 7, said
    assert re.search(r"error: rank 0 \(process \d+\) ended with exit code 7, so the run has been ended", said), said
    assert before in said

    code, said = found["zero"]
    assert code == 5, said
    assert "error: the run has finished without rank 0 (it ended with exit code 5); the exit code is 5" in said

    code, said = found["nobody"]
    assert code in (5, 6), said
    assert f"ended with exit code {code}, and no worker is left" in said

    code, said = found["stopped"]
    assert code == 0, said
    how = r"was stopped, by SIGSTOP or in a debugger, and has used no processor time for \d+ s"
    told = rf"uneven: rank 1 \(process \d+\) {how}"
    assert re.search(f"{told}; the others continue without it; when they have ended it is killed\n", said), said
    assert re.search(f"{told}, so it was killed; no other worker is left here\n", said), said
    assert "finished without rank 1 (it was stopped" in said

    code, said = found["held"]
    assert code == KILLED, said
    told = told.replace("uneven: rank 1", "error: rank 0")
    assert re.search(f"{told}, so it was killed, so the run has been ended: it held the copy\n", said), said
    assert before in said

    code, said = found["again"]
    assert code == 0, said
    assert "finished without" not in said, "nobody was lost since the restart"
