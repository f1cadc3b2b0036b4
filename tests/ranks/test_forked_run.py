"""``uneven.testing.forked_run``: a run whose workers are forks of the launcher, and yet as separate as any."""

from __future__ import annotations

from pathlib import Path

from uneven.testing.scripts import run_script

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
IMPORTED = ("uneven.cli.run", "uneven.launch.agent", "rich.console")
ENDS = {
    "0": ("", 0),
    "words": ("rank == 1 and sys.exit('no more')", 1),
    "error": ("if rank == 1: raise ValueError('on purpose')", 1),
}


def test_workers_are_forks_and_yet_as_separate_as_any(tmp_path: Path) -> None:
    said = {}
    for name, (end, code) in ENDS.items():
        (tmp_path / "train.py").write_text(f"{SCRIPT}\n{end}\n")
        words = ["-m", "uneven.testing.forked_run", "run", "--nproc", 2, "--run-dir", name, "train.py", "--epochs", 3]
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
