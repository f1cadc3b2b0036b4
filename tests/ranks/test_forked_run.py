"""``uneven_bench.forked.run``: a run whose workers are forks of the launcher, and yet as separate as any."""

from __future__ import annotations

from pathlib import Path

from uneven_bench.forked.scripts import run_script

SCRIPT = """
import atexit, os, sys
from pathlib import Path

rank = int(os.environ["RANK"])
atexit.register(lambda: print(f"{rank} leaves"))
shown = dict(one.split("=", 1) for one in Path("/proc/self/environ").read_text().split("\\0") if "=" in one)
assert shown["RANK"] == os.environ["RANK"] and shown["TORCHELASTIC_RUN_ID"] == os.environ["TORCHELASTIC_RUN_ID"]
assert os.getsid(0) == os.getpgid(0) == os.getpid() != os.getppid()
assert sys.argv[1:] == ["--epochs", "3"] and __name__ == "__main__" and __file__.endswith("train.py")
assert len(os.listdir("/proc/self/fd")) <= 5, "nothing of the launcher's is open"
print(f"{rank} trains", flush=True)
"""
ELASTIC = (
    SCRIPT.replace('trains"', 'trains, forked: {before}"')
    + """
import uneven, torch
session = uneven.Session()
model, optimizer = session.setup(torch.nn.Linear(1, 1), torch.optim.SGD([torch.zeros(1)]))
"""
)
IMPORTED = ("uneven.cli.run", "uneven.runtime.launch.fixed_workers", "rich.console")
PARENT = """
import os, subprocess, sys
from uneven_bench.forked.run import Forked
ours, theirs = os.pipe()
os.write(theirs, b"given")
line = [sys.executable, "-I", os.path.abspath("child.py"), str(ours)]
there = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "cwd": "there", "pass_fds": [ours]}
print(Forked(line, **there).communicate(b"told")[0].decode())
"""
ENDS = {
    "0": ("", 0),
    "words": ("rank == 1 and sys.exit('no more')", 1),
    "error": ("if rank == 1: raise ValueError('on purpose')", 1),
}


def test_workers_are_forks_and_yet_as_separate_as_any(tmp_path: Path) -> None:
    said = {}
    for name, (end, code) in ENDS.items():
        (tmp_path / "train.py").write_text(f"{SCRIPT}\n{end}\n")
        words = ["-m", "uneven_bench.forked.run", "run", "--nproc", 2, "--run-dir", name, "train.py", "--epochs", 3]
        done = run_script(words, cwd=tmp_path, merged=True, imported=IMPORTED, timeout_s=100)
        assert done.returncode == code, done.stdout
        said[name] = done.stdout
        assert "1 trains" in done.stdout
    assert "0 leaves" in said["0"]
    assert "1 leaves" in said["0"]
    assert "no more" in said["words"]
    assert "ValueError: on purpose" in said["error"]
    assert "1 leaves" in said["error"]
    assert "error: rank 1 (process" in said["error"]


def test_workers_of_jobs_are_forks_too(tmp_path: Path) -> None:
    """The launcher of an elastic run starts them through jobs, each bound to it."""
    (tmp_path / "train.py").write_text("import sys; before = 'torch' in sys.modules\n" + ELASTIC)
    words = ["-m", "uneven_bench.forked.run", "run", "--nproc", 2, "--elastic", "1:2", "--run-dir", "run", "train.py"]
    done = run_script([*words, "--epochs", 3], cwd=tmp_path, merged=True, imported=IMPORTED, timeout_s=100)
    assert done.returncode == 0, done.stdout
    assert "0 trains, forked: True" in done.stdout
    assert "1 leaves" in done.stdout


def test_streams_files_and_folder_of_a_fork_are_those_that_it_was_given(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "child.py").write_text(
        "import os, sys; print(os.getcwd(), input(), os.read(int(sys.argv[1]), 9).decode())"
    )
    (tmp_path / "parent.py").write_text(PARENT)
    done = run_script(["parent.py"], cwd=tmp_path, merged=True, timeout_s=100)
    assert done.stdout.split() == [str(tmp_path / "there"), "told", "given"], done.stdout
