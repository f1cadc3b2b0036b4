"""Workers with a share of a core each, and what becomes of what workers print."""

from __future__ import annotations

import time
from pathlib import Path

import psutil
import pytest
from test_launch import launched, reports, script, uneven, until

from uneven.runtime import launch
from uneven.runtime.jobs import Ending

BUSY = """
from uneven.runtime import rundir
from pathlib import Path
before = time.process_time()
while time.process_time() < before + 0.3: pass
open(os.path.join(run, rank + ".free"), "w").close()
rundir.mark_ready(Path(run), int(rank))
while True: pass
"""


@pytest.mark.alone
def test_shares_hold_from_the_moment_a_worker_is_ready(tmp_path: Path) -> None:
    run = tmp_path / "run"
    options = launch.Launch(target=(script(tmp_path, BUSY),), shares=(0.3, 0.1), wait_ready=True)
    with launched(options, run):
        told = reports(run, 2)
        pids = [int(str(worker["pid"])) for worker in told]
        assert {worker["OMP_NUM_THREADS"] for worker in told} == {"1"}
        seen: dict[int, set[str]] = {pid: set() for pid in pids}

        def both_were_stopped() -> bool:
            for pid in pids:
                seen[pid].add(psutil.Process(pid).status())
            return all(psutil.STATUS_STOPPED in statuses for statuses in seen.values())

        assert until(both_were_stopped)
        assert all((run / f"{rank}.free").exists() for rank in range(2))
        before, began = [sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids], time.monotonic()
        time.sleep(2.0)
        took = time.monotonic() - began
        used = [sum(psutil.Process(pid).cpu_times()[:2]) - cpu for pid, cpu in zip(pids, before, strict=True)]
    # psutil counts in hundredths of a second; the throttle's own test is the exact one
    assert used[0] <= 0.3 * took * 1.05 + 0.02
    assert used[1] <= 0.1 * took * 1.05 + 0.02


SILENT = """
while not os.path.exists(os.path.join(run, "enough")): time.sleep(0.01)
"""


def test_who_never_says_that_it_trains_gets_its_share_all_the_same(tmp_path: Path) -> None:
    run, output = tmp_path / "run", tmp_path / "output.txt"
    target = (script(tmp_path, SILENT),)
    options = launch.Launch(target=target, shares=(0.5, 0.5), wait_ready=True, ready_within_s=0.5)
    with launch.start(options, run_directory=run, output=output) as launcher:
        reports(run, 2)
        late = "did not start training within 0.5 s"
        assert until(lambda: output.read_text().count(late) == 2)
        (run / "enough").touch()
        assert launcher.wait(60) == Ending.of(0)
    assert output.read_text().count(late) == 2  # said once for each, though it is asked again and again


PLAIN = """
import socket
from pathlib import Path
from uneven.runtime import rundir
if rank == "1":
    rundir.mark_coming(Path(run), 1)  # as a session does
while not os.path.exists(os.path.join(run, "meet")): time.sleep(0.01)
with socket.create_connection((told["MASTER_ADDR"], int(told["MASTER_PORT"]))):
    while True:
        if rank == "1" and os.path.exists(os.path.join(run, "enough")):
            rundir.mark_ready(Path(run), 1)
            break
    while True: pass
"""


def test_a_script_without_a_session_has_its_share_from_when_it_meets_the_others(tmp_path: Path) -> None:
    run, output = tmp_path / "run", tmp_path / "output.txt"
    options = launch.Launch(target=(script(tmp_path, PLAIN),), shares=(0.05, 0.05), wait_ready=True)
    with launched(options, run, output):
        plain, told = (int(str(worker["pid"])) for worker in reports(run, 2))
        assert "use no uneven" not in output.read_text()
        (run / "meet").touch()
        assert until(lambda: "use no uneven.Session" in output.read_text())
        assert until(lambda: psutil.Process(plain).status() == psutil.STATUS_STOPPED)
        assert runs_freely(told)  # its session will say
        (run / "enough").touch()
        assert until(lambda: psutil.Process(told).status() == psutil.STATUS_STOPPED)


PRINTS = """
print("out of", rank)
print("err of", rank, file=sys.stderr)
"""


def test_what_workers_print_goes_where_it_is_asked_for(tmp_path: Path) -> None:
    script(tmp_path, PRINTS)
    done = uneven("run", "--nproc", "3", "--run-dir", "run", "-r", "1:1", "--tee", "2:3", "--log-rank", "0,1",
                  "worker.py", cwd=tmp_path)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "out of 0" in done.stdout
    assert "err of 0" in done.stderr
    assert "out of 1" not in done.stdout
    assert "err of 1" in done.stderr, "only its stdout is redirected"
    assert "of 2" not in done.stdout + done.stderr, "it is not to be shown"
    assert "the output of workers is in" in done.stderr
    kept = {f"{path.parent.name}/{path.name}": path.read_text() for path in (tmp_path / "run" / "logs").rglob("*.log")}
    assert {name: text for name, text in kept.items() if text} == {
        "1/stdout.log": "out of 1\n",
        "2/stdout.log": "out of 2\n",
        "2/stderr.log": "err of 2\n",
    }


def runs_freely(pid: int) -> bool:
    """Whether it uses 0.3 s of processor time without being seen stopped; at 0.05 of a core it is so nearly always."""
    process = psutil.Process(pid)
    aim_s = sum(process.cpu_times()[:2]) + 0.3
    while sum(process.cpu_times()[:2]) < aim_s:
        if process.status() == psutil.STATUS_STOPPED:
            return False
    return True
