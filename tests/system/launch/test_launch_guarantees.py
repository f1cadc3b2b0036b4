"""The promises of the launcher to a worker and to the shell: torchrun's environment, restarts, signals, machines."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
from test_launch import ended, launched, reports, script, until

from uneven.cluster.emulate.ports import quiet_ports
from uneven.runtime import launch
from uneven.runtime.jobs.processes import import_path

DUMPS = """
names = ("RANK", "LOCAL_", "GROUP_", "ROLE_", "WORLD_SIZE", "MASTER_", "TORCHELASTIC_",
         "TORCH_NCCL_", "OMP_", "GLOO_", "UNEVEN_RUN")
mine = {name: text for name, text in os.environ.items() if name.startswith(names)}
start = os.environ["TORCHELASTIC_RESTART_COUNT"]
with open(os.path.join(run, "env-" + rank + "-" + start), "w") as file: json.dump(mine, file)
"""


def environments(run: Path) -> list[dict[str, str]]:
    return [json.loads(path.read_text()) for path in sorted(run.glob("env-*"))]


def test_a_worker_has_the_environment_of_torchrun(tmp_path: Path) -> None:
    run = tmp_path / "run"
    options = launch.Launch(target=(script(tmp_path, DUMPS), "${local_rank}"), nproc="2")
    with launched(options, run, OMP_NUM_THREADS="3", GLOO_SOCKET_IFNAME="lo") as launcher:
        assert launcher.wait(60) == 0
    assert [worker["argv"] for worker in reports(run, 2)] == [["0"], ["1"]]
    for rank, env in enumerate(environments(run)):
        error_file = Path(env.pop("TORCHELASTIC_ERROR_FILE"))
        assert (error_file.name, error_file.parent.name, error_file.parent.parent.name) == (
            "error.json", str(rank), "attempt_0",
        )  # fmt: skip
        assert env.pop("TORCHELASTIC_RUN_ID")
        env.pop("TORCHELASTIC_SIGNALS_TO_HANDLE", None)  # torch's agent sets it in its own process
        assert env.pop("MASTER_PORT").isdigit()
        assert env == {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "GROUP_RANK": "0",
            "ROLE_RANK": str(rank),
            "ROLE_NAME": "default_role",
            "WORLD_SIZE": "2",
            "LOCAL_WORLD_SIZE": "2",
            "GROUP_WORLD_SIZE": "1",
            "ROLE_WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
            "OMP_NUM_THREADS": "3",
            "GLOO_SOCKET_IFNAME": "lo",
            "UNEVEN_RUN": str(run),
        }


def test_a_worker_reads_the_input_of_the_command(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('got', input())")
    done = subprocess.run(
        [sys.executable, "-m", "uneven", "run", "--nproc", "1", "train.py"], input="a line\n", text=True,
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": import_path()}, capture_output=True, timeout=100, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "got a line\n"), done.stderr


HANDLES = """
import signal
def note(number, frame):
    open(os.path.join(run, "signal-" + rank + "-" + str(number)), "w").close()
    sys.exit(0)
signal.signal(int(sys.argv[1]), note)
os.rename(os.path.join(run, rank + ".json"), os.path.join(run, rank + ".ready"))
time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_reaches_the_workers_and_is_the_exit_code(tmp_path: Path, number: signal.Signals) -> None:
    if signal.getsignal(number) is signal.SIG_IGN:
        pytest.skip("under nohup, a launcher ignores this signal, too")
    run, output = tmp_path / "run", tmp_path / "output.txt"
    options = launch.Launch(target=(script(tmp_path, HANDLES), str(int(number))), nproc="2")
    with launched(options, run, output) as launcher:
        assert until(lambda: all((run / f"{rank}.ready").exists() for rank in range(2)))
        os.kill(launcher.pid, number)
        assert launcher.wait(60) == 128 + number
    assert sorted(one.name for one in run.glob("signal-*")) == [f"signal-{rank}-{int(number)}" for rank in range(2)]
    assert f"stopped by {number.name}; all workers have ended" in output.read_text()


def test_a_worker_that_does_not_react_is_killed_after_the_grace_period(tmp_path: Path) -> None:
    run = tmp_path / "run"
    target = script(tmp_path, "time.sleep(600)", "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)")
    with launched(launch.Launch(target=(target,), nproc="1"), run, TORCH_ELASTIC_SHUTDOWN_TIMEOUT="1") as launcher:
        (worker,) = reports(run, 1)
        os.kill(launcher.pid, signal.SIGTERM)
        assert launcher.wait(60) == 128 + signal.SIGTERM
    assert ended(int(str(worker["pid"])))


def test_a_second_signal_ends_workers_that_do_not_react(tmp_path: Path) -> None:
    run, output = tmp_path / "run", tmp_path / "output.txt"
    target = script(tmp_path, HANDLES.replace("sys.exit(0)", "pass").replace("600", "900"))
    options = launch.Launch(target=(target, str(int(signal.SIGINT))), nproc="2")
    with launched(options, run, output, TORCH_ELASTIC_SHUTDOWN_TIMEOUT="600") as launcher:
        assert until(lambda: all((run / f"{rank}.ready").exists() for rank in range(2)))
        os.kill(launcher.pid, signal.SIGINT)
        assert until(lambda: len(list(run.glob("signal-*"))) == 2)
        os.kill(launcher.pid, signal.SIGINT)
        assert launcher.wait(30) == 128 + signal.SIGINT
    workers = [json.loads((run / f"{rank}.ready").read_text())["pid"] for rank in range(2)]
    assert all(map(ended, workers))
    assert "Traceback" not in output.read_text()


@pytest.mark.parametrize("more", [{}, {"rdzv_backend": "c10d"}])
def test_ctrl_c_ends_a_launcher_that_waits_for_another_machine(tmp_path: Path, more: dict[str, str]) -> None:
    (port,) = quiet_ports(1)
    options = launch.Launch(
        target=(script(tmp_path),),
        nproc="1",
        nnodes="2",
        rdzv_endpoint=f"127.0.0.1:{port}",
        **more,  # type: ignore[arg-type]
    )
    with launched(options, tmp_path / "run", tmp_path / "output.txt") as launcher:
        assert until(lambda: any(one.laddr.port == port for one in psutil.Process(launcher.pid).net_connections("tcp")))
        os.kill(launcher.pid, signal.SIGINT)
        assert launcher.wait(30) == 128 + signal.SIGINT
    assert "stopped by SIGINT" in (tmp_path / "output.txt").read_text()


FAILS = """
import subprocess
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
with open(os.path.join(run, "new-" + rank + "-" + start), "w") as file: file.write(f"{os.getpid()} {child.pid}")
os.rename(file.name, file.name.replace("new-", "child-"))
while not all(os.path.exists(os.path.join(run, f"child-{one}-{start}")) for one in range(2)): time.sleep(0.01)
if rank == "1" and int(start) < 2: sys.exit(3 + int(start))
if int(start) < 2: time.sleep(600)
child.kill()
"""


@pytest.mark.parametrize(("budget", "code"), [(1, 4), (3, 0)])
def test_all_workers_are_restarted_as_often_as_allowed(tmp_path: Path, budget: int, code: int) -> None:
    run = tmp_path / "run"
    options = launch.Launch(target=(script(tmp_path, DUMPS + FAILS),), nproc="2", max_restarts=budget)
    with launched(options, run) as launcher:
        assert launcher.wait(100) == code
    found = environments(run)
    starts = range(2 if code else 3)
    assert [env["TORCHELASTIC_RESTART_COUNT"] for env in found] == [str(start) for start in starts] * 2
    assert {env["TORCHELASTIC_MAX_RESTARTS"] for env in found} == {str(budget)}
    assert {Path(env["TORCHELASTIC_ERROR_FILE"]).parent.parent.name for env in found} == {
        f"attempt_{start}" for start in starts
    }
    workers = [int(path.read_text().split()[0]) for path in run.glob("child-*")]
    assert all(map(ended, workers))
    left = [int((run / f"child-1-{start}").read_text().split()[1]) for start in range(2)]
    assert until(lambda: all(map(ended, left)), 10) or code == 0, "a failed worker leaves no process behind"


def test_machines_with_different_numbers_of_workers_wait_for_each_other(tmp_path: Path) -> None:
    (port,) = quiet_ports(1)
    then = DUMPS + "\nwhile rank == '2' and not os.path.exists(os.path.join(run, 'enough')): time.sleep(0.01)"
    target, run = script(tmp_path, then), tmp_path / "run"
    one = launch.Launch(target=(target,), nproc="2", nnodes="2", node_rank=0, master_port=port, rdzv_id="mine")
    other = dataclasses.replace(one, node_rank=1, nproc="1")
    with ExitStack() as stack:
        first, second = (stack.enter_context(launched(options, run)) for options in (one, other))
        told = reports(run, 3)
        assert until(lambda: all(ended(int(str(worker["pid"]))) for worker in told[:2]))
        time.sleep(0.3)
        assert first.poll() is None, "it keeps the store until the other machine has finished"
        (run / "enough").touch()
        assert [first.wait(80), second.wait(80)] == [0, 0]
    names = ("RANK", "LOCAL_RANK", "GROUP_RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_RANK",
             "ROLE_WORLD_SIZE", "TORCHELASTIC_RUN_ID")  # fmt: skip
    assert [[env[name] for name in names] for env in environments(run)] == [
        ["0", "0", "0", "2", "3", "2", "0", "3", "mine"],
        ["1", "1", "0", "2", "3", "2", "1", "3", "mine"],
        ["2", "0", "1", "1", "3", "2", "2", "3", "mine"],
    ]


@pytest.mark.parametrize("backend", ["static", "c10d"])
def test_machines_are_restarted_together(tmp_path: Path, backend: str) -> None:
    """With c10d only the machine whose worker failed spends a restart; the other one follows it."""
    (port,) = quiet_ports(1)
    then = (
        DUMPS
        + """
first = os.path.join(run, "first-" + os.environ["MACHINE"])
begun = not os.path.exists(first)
open(first, "a").close()
if begun:
    while len([one for one in os.listdir(run) if one.startswith("first-")]) < 2: time.sleep(0.01)
    if os.environ["MACHINE"] == "1": sys.exit(9)
    while BACKEND == "c10d" or not ENDED(): time.sleep(0.01)
    sys.exit(8)
open(os.path.join(run, "again-" + os.environ["MACHINE"]), "w").close()
while len([one for one in os.listdir(run) if one.startswith("again-")]) < 2: time.sleep(0.01)
"""
    )
    seen = "(lambda: os.path.exists(os.path.join(run, 'again-1')))"  # a worker of torch notices that its peer is gone
    target = script(tmp_path, then.replace("BACKEND", repr(backend)).replace("ENDED", seen))
    run = tmp_path / "run"
    if backend == "c10d":
        one = launch.Launch(
            target=(target,), nproc="1", nnodes="2", rdzv_backend="c10d", rdzv_endpoint=f"127.0.0.1:{port}",
            rdzv_id="mine", max_restarts=1, local_addr="127.0.0.1",
        )  # fmt: skip
        two = one
    else:
        one = launch.Launch(target=(target,), nproc="1", nnodes="2", master_port=port, max_restarts=1)
        two = dataclasses.replace(one, node_rank=1)
    with ExitStack() as stack:
        machines = [
            stack.enter_context(launched(options, run, tmp_path / f"{name}.txt", MACHINE=str(name)))
            for name, options in enumerate((one, two))
        ]
        codes = [machine.wait(100) for machine in machines]
    assert codes == [0, 0], [(tmp_path / f"{name}.txt").read_text() for name in range(2)]
    assert sorted(path.name for path in run.glob("again-*")) == ["again-0", "again-1"]


def test_a_machine_without_restarts_left_ends_the_other_one(tmp_path: Path) -> None:
    (port,) = quiet_ports(1)
    then = """
if rank == '1': sys.exit(9)
while not os.path.exists(os.path.join(run, 'gone')): time.sleep(0.01)
sys.exit(8)
"""
    target, run = script(tmp_path, then), tmp_path / "run"
    one = launch.Launch(target=(target,), nproc="1", nnodes="2", master_port=port)
    with ExitStack() as stack:
        first, second = (
            stack.enter_context(launched(dataclasses.replace(one, node_rank=rank), run, tmp_path / f"{rank}.txt"))
            for rank in range(2)
        )
        assert second.wait(80) == 9
        (run / "gone").touch()
        assert first.wait(80) == 8
    assert "rank 1 (process" in (tmp_path / "1.txt").read_text()


def test_tee_names_the_local_rank(tmp_path: Path) -> None:
    output = tmp_path / "output.txt"
    options = launch.Launch(
        target=(script(tmp_path, "print('said')"),), nproc="2",
        output=launch.WorkerOutput(tee="3", directory=str(tmp_path / "logs")),
    )  # fmt: skip
    with launched(options, tmp_path / "run", output) as launcher:
        assert launcher.wait(60) == 0
    assert {"[default_role0]:said", "[default_role1]:said"} <= set(output.read_text().splitlines())
