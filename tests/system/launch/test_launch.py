"""The launcher with real workers.

Importing torch takes a launcher seconds, so most are forked from a process that has done so; what they start is started
as ever. Three tests leave nothing out: of the command line and of ``launch.start``.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest

from uneven.cluster.emulate.ports import quiet_ports
from uneven.runtime import launch, rundir
from uneven.runtime.jobs.processes import descendants, import_path
from uneven_bench.forked.scripts import Script, run_script

# Workers that need no torch are there at once; what they leave is one file each.
WORKER = """
import json, os, sys, time
{imports}
run, rank = os.environ["UNEVEN_RUN"], os.environ["RANK"]
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS")
told = {{name: os.environ[name] for name in names}}
with open(os.path.join(run, rank + ".part"), "w") as file:
    json.dump({{"pid": os.getpid(), "argv": sys.argv[1:], **told}}, file)
os.rename(file.name, os.path.join(run, rank + ".json"))
{then}
"""


def script(directory: Path, then: str = "", imports: str = "") -> str:
    path = directory / "worker.py"
    path.write_text(WORKER.format(then=then, imports=imports))
    return str(path)


def reports(run: Path, count: int) -> list[dict[str, object]]:
    """What the workers left, once all of them have."""
    paths = [run / f"{rank}.json" for rank in range(count)]
    assert until(lambda: all(path.exists() for path in paths))
    return [json.loads(path.read_text()) for path in paths]


def until(happens: Callable[[], bool], within_s: float = 60.0) -> bool:
    end = time.monotonic() + within_s
    while not happens():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def uneven(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": import_path()}
    return run_script(["-m", "uneven", *arguments], cwd=cwd, env=environment, timeout_s=100)


@contextmanager
def launched(options: launch.Launch, run: Path, output: Path | None = None, **env: str) -> Iterator[Script]:
    """``launch.start``, forked."""
    task = {"launch": dataclasses.asdict(options), "run_directory": str(run)}
    run.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "PYTHONPATH": import_path(), **env}
    words = ["-m", "uneven.runtime.launch", json.dumps(task)]
    with Script(words, env=environment, merged=True, output=output) as launcher:
        try:
            yield launcher
        finally:
            launcher.send_signal(signal.SIGTERM)
            launcher.wait(30)


def test_the_command_line_starts_workers_and_leaves_their_arguments_alone(tmp_path: Path) -> None:
    script(tmp_path)
    arguments = ["--epochs", "3", "--nproc", "9", "-x", "--", "--help"]
    command = [sys.executable, "-m", "uneven", "run", "--nproc", "2", "--sync", "bsp", "--seed", "5", "worker.py"]
    done = subprocess.run(
        [*command, *arguments],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": import_path()}, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (run,) = (tmp_path / "runs").iterdir()
    assert run.name.endswith("-worker")
    assert rundir.load_layers(run) == {"command line": {"sync": "bsp", "seed": 5}}
    told = reports(run, 2)
    assert [worker["argv"] for worker in told] == [arguments, arguments]
    assert [worker["RANK"] for worker in told] == ["0", "1"]
    assert {worker["MASTER_ADDR"] for worker in told} == {"127.0.0.1"}
    hint, first, second = done.stderr.splitlines()  # and nothing else
    assert hint == (
        "uneven: --nproc after worker.py is an argument of the script: to pass it to uneven, put it before worker.py"
    )
    assert "run directory runs/" in first
    assert "made no uneven.Session()" in second
    assert str(run.relative_to(tmp_path)) in done.stderr


@pytest.mark.parametrize(
    ("dying", "code", "said"),
    [
        ("raise ValueError('a bad label')", 1, "rank 1 (process {pid}) ended with exit code 1"),
        ("os._exit(7)", 7, "rank 1 (process {pid}) ended with exit code 7"),
        ("os.kill(os.getpid(), 9)", 137, "rank 1 (process {pid}) was killed by SIGKILL"),
    ],
)
def test_a_worker_that_dies_ends_the_run(tmp_path: Path, dying: str, code: int, said: str) -> None:
    then = f"if rank == '1':\n    time.sleep(0.5)\n    {dying}\ntime.sleep(600)"
    target = script(tmp_path, then)
    run, output = tmp_path / "run", tmp_path / "output.txt"
    if "raise" in dying:  # with nothing left out
        with launch.start(launch.Launch(target=(target,), nproc="3"), run_directory=run, output=output) as process:
            ending = process.wait(100)
            assert ending is not None
            ended_with = ending.code
    else:
        with launched(launch.Launch(target=(target,), nproc="3"), run, output) as launcher:
            ended_with = launcher.wait(100)
    assert ended_with == code
    workers = reports(run, 3)
    text = output.read_text()
    assert said.format(pid=workers[1]["pid"]) in text
    assert text.count("Traceback") == ("raise" in dying)
    assert ("ValueError: a bad label" in text) == ("raise" in dying)
    assert len(text.splitlines()) < 12
    assert all(ended(int(str(worker["pid"]))) for worker in workers)


def test_the_cause_is_told_from_its_consequences(tmp_path: Path) -> None:
    """Ranks that miss a peer end sooner than the peer itself, whose end takes long; the cause is named."""
    then = """
from uneven.errors import PeerError
from uneven.runtime.world import report_failures
report_failures()
mark = os.path.join(run, "failing")
if rank == "2":
    import atexit
    atexit.register(time.sleep, 1.5)
    open(mark, "w").close()
    raise ValueError("a bad label")
while not os.path.exists(mark): time.sleep(0.01)
time.sleep(0.1)
raise (PeerError if rank == "0" else RuntimeError)("rank 2 is missing")
"""
    run, output = tmp_path / "run", tmp_path / "output.txt"
    with launched(launch.Launch(target=(script(tmp_path, then),), nproc="3"), run, output) as launcher:
        assert launcher.wait(100) == 1
    last = output.read_text().rpartition("error: ")[2]
    assert last.startswith("rank 2 (process ")
    assert "ValueError: a bad label" in last


def test_a_worker_that_somebody_has_stopped_is_told_from_those_that_miss_it(tmp_path: Path) -> None:
    then = """
import signal
from uneven.errors import PeerError
from uneven.runtime.world import report_failures
report_failures()
if rank == "1": os.kill(os.getpid(), signal.SIGSTOP)
while not os.path.exists(os.path.join(run, "1.json")): time.sleep(0.01)
other = json.load(open(os.path.join(run, "1.json")))["pid"]
while open(f"/proc/{other}/stat").read().rpartition(")")[2].split()[0] != "T": time.sleep(0.01)
raise PeerError("rank 1 did not take part")
"""
    run, output = tmp_path / "run", tmp_path / "output.txt"
    options = launch.Launch(target=(script(tmp_path, then),), nproc="2")
    with launched(options, run, output) as launcher:
        assert launcher.wait(100) == 128 + signal.SIGKILL
    last = output.read_text().rpartition("error: ")[2]
    assert re.match(r"rank 1 \(process \d+\) was stopped, by SIGSTOP or in a debugger, so it was killed", last)
    assert "rank 0 had waited for it: uneven.errors.PeerError: rank 1 did not take part" in last
    assert "memory" not in last


def test_ctrl_c_ends_every_worker_even_a_stopped_one(tmp_path: Path) -> None:
    target = script(tmp_path, "while True: pass")
    run, output = tmp_path / "run", tmp_path / "output.txt"
    options = launch.Launch(target=(target,), nproc="2", shares=(0.5, 0.05))
    with launched(options, run, output) as launcher:
        workers = [int(str(worker["pid"])) for worker in reports(run, 2)]
        below = descendants(launcher.pid)
        assert set(workers) < set(below)
        os.kill(launcher.pid, signal.SIGINT)
        assert launcher.wait(60) == 128 + signal.SIGINT
    assert until(lambda: all(ended(pid) for pid in below), 5)
    assert "stopped by SIGINT" in output.read_text()


def test_workers_end_with_a_launcher_that_is_killed_even_a_stopped_one(tmp_path: Path) -> None:
    """And the next launcher removes its folder."""
    target = script(tmp_path, "time.sleep(600)", "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)")
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    with launched(launch.Launch(target=(target,), nproc="2"), tmp_path / "run", TMPDIR=str(temporary)) as launcher:
        workers = [int(str(worker["pid"])) for worker in reports(tmp_path / "run", 2)]
        os.kill(workers[0], signal.SIGSTOP)
        os.kill(launcher.pid, signal.SIGKILL)
        assert until(lambda: all(ended(pid) for pid in workers), 10)
    assert [one.name.startswith("uneven-launch-") for one in temporary.iterdir()] == [True]
    following = launch.Launch(target=(script(tmp_path),), nproc="1")
    with launched(following, tmp_path / "next", TMPDIR=str(temporary)) as launcher:
        assert launcher.wait(60) == 0
    assert not list(temporary.iterdir())


def test_a_launcher_of_a_program_ends_with_it(tmp_path: Path) -> None:
    target = script(tmp_path, "time.sleep(600)")
    program = f"""
import sys, time
from pathlib import Path
from uneven.runtime import launch
options = launch.Launch(target=({target!r},), nproc="1")
with launch.start(options, run_directory=Path({str(tmp_path / "run")!r})) as run:
    print(run.pid, flush=True)
    time.sleep(600)
"""
    with Script(["-c", program], env={**os.environ, "PYTHONPATH": import_path()}) as process:
        (worker,) = (int(str(one["pid"])) for one in reports(tmp_path / "run", 1))
        launcher = int(process.printed())
        process.kill()
        assert until(lambda: ended(launcher) and ended(worker), 30)


def test_a_run_of_one_machine_listens_on_the_loopback_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    target = script(tmp_path, "while not os.path.exists(os.path.join(run, 'enough')): time.sleep(0.01)")
    (port,) = quiet_ports(1)
    for number, named in enumerate(({}, {"master_port": port}, {"rdzv_endpoint": f"localhost:{port}"})):
        run = tmp_path / f"run-{number}"
        options = launch.Launch(target=(target,), nproc="1", **named)  # type: ignore[arg-type]
        with launched(options, run, TMPDIR=str(tmp_path / "tmp")) as launcher:
            (worker,) = reports(run, 1)
            where = {one.laddr for one in psutil.Process(launcher.pid).net_connections("tcp") if one.status == "LISTEN"}
            assert {address for address, _ in where} <= {"127.0.0.1", "::1"}
            assert int(str(worker["MASTER_PORT"])) in {number for _, number in where}
            (run / "enough").touch()
            assert launcher.wait(60) == 0
    assert not list((tmp_path / "tmp").iterdir())


def test_a_port_in_use_is_named_before_anything_starts(tmp_path: Path) -> None:
    script(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = uneven("run", "--nproc", "2", "--master-port", str(port), "worker.py", cwd=tmp_path)
    assert done.returncode == 1
    assert f"port {port} on 127.0.0.1 is in use" in done.stderr
    assert "--master-port" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_given_port_is_used(tmp_path: Path) -> None:
    then = "print('port', os.environ['MASTER_PORT'], flush=True)"
    target = script(tmp_path, then)
    (port,) = quiet_ports(1)
    output = tmp_path / "output.txt"
    options = launch.Launch(target=(target,), nproc="2", master_port=port)
    with launched(options, tmp_path / "run", output) as launcher:
        assert launcher.wait(60) == 0, output.read_text()
    assert output.read_text().count(str(port)) == 2  # the lines of two workers may run into each other


def test_two_machines_meet(tmp_path: Path) -> None:
    (port,) = quiet_ports(1)
    target, run = script(tmp_path), tmp_path / "run"
    one = launch.Launch(target=(target,), nproc="1", nnodes="2", node_rank=0, master_port=port)
    with ExitStack() as stack:
        machines = [
            stack.enter_context(launched(options, run)) for options in (one, dataclasses.replace(one, node_rank=1))
        ]
        assert [machine.wait(80) for machine in machines] == [0, 0]
    assert [worker["WORLD_SIZE"] for worker in reports(run, 2)] == ["2", "2"]


SERVED = """
import os, pathlib, signal, sys, time, torch, uneven
from torch.utils.data import TensorDataset
rank, strikes = int(os.environ["RANK"]), sys.argv[1:]
session = uneven.Session()
model = torch.nn.Linear(1, 1)
session.setup(model, optimizer := torch.optim.SGD(model.parameters(), lr=0.1))
struck = pathlib.Path("struck")
for step, (x,) in enumerate(session.loader(TensorDataset(torch.zeros(40, 1)), 4)):
    until_s = time.monotonic() + 60
    while rank == 0 and not struck.exists():  # otherwise it may train on all samples before the other comes so far
        assert time.monotonic() < until_s, "rank 1 has not come to its third batch"
        time.sleep(0.01)
    if rank == 1 and step == 2:
        struck.touch()
        for pid in [os.getppid()] * ("launcher" in strikes) + [os.getpid()]:
            os.kill(pid, signal.SIGKILL)
    model(x).sum().backward()
    optimizer.step()
session.close()
print(f"rank {rank} is through")
"""


@pytest.mark.parametrize("strikes", [(), ("launcher",)])
def test_a_launcher_does_not_wait_five_minutes_for_one_that_is_gone(tmp_path: Path, strikes: tuple[str, ...]) -> None:
    (port,) = quiet_ports(1)
    (tmp_path / "served.py").write_text(SERVED)
    words = ["-m", "uneven", "run", "--nproc", "1", "--nnodes", "2", "--master-port", port, "--run-dir", "run"]
    words += ["--sync", "asp", "--timeout", "10"]  # on a busy machine a start takes up to 5 s
    there = {**os.environ, "TMPDIR": str(tmp_path)}  # a launcher that is killed leaves its folder
    with ExitStack() as stack:
        first, second = (
            stack.enter_context(
                Script([*words, "--node-rank", rank, "served.py", *strikes], cwd=tmp_path, env=there, merged=True)
            )
            for rank in range(2)
        )
        said, said_there = first.communicate(100)[0], second.communicate(100)[0]
    assert first.returncode == 0, said
    assert "rank 0 is through" in said
    assert second.returncode == (-9 if strikes else 137), said_there
    assert strikes or "was killed by SIGKILL, and no worker of this launcher is left" in said_there


def test_modules_and_mistakes(tmp_path: Path) -> None:
    script(tmp_path)
    done = uneven("run", "--run-dir", "here", "-m", "worker", "--flag", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (told,) = reports(tmp_path / "here", 1)
    assert told["argv"] == ["--flag"]
    again = uneven("run", "--run-dir", "here", "worker.py", cwd=tmp_path)
    assert again.returncode == 2
    assert "here already has a run" in again.stderr
    wrong = uneven("run", "--sync", "bps", "worker.py", cwd=tmp_path)
    assert wrong.returncode == 2
    assert "did you mean 'bsp'" in wrong.stderr
    assert not (tmp_path / "runs").exists()
