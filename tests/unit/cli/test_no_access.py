"""What an ordinary user may not read or write is refused in words, by every command, wherever it is named."""

from __future__ import annotations

import json
from pathlib import Path

from uneven_bench.forked.scripts import run_script

COMMANDS = (
    "run locked/train.py",
    "run --config locked/settings.toml train.py",
    "run --run-dir locked/new train.py",
    "emulate locked/cluster.toml --unprivileged -- train.py",
    "emulate demo4 --unprivileged --run-dir locked/new -- train.py",
    "simulate locked/cluster.toml",
    "simulate demo4 --iterations 1 --run-dir locked/new",
    "simulate --costs locked/run",
    "plan locked/run",
    "plan locked/cluster.toml",
    "fleet run locked/ensemble.toml",
    "fleet show locked/ensemble.toml",
    "runs locked",
    "init --config locked/uneven.toml",
    "watch locked/run",
    "report locked/run",
    "report run --report locked/out.html",
    "report run --report mine.html --trace locked/out.json",
    "report run --report mine.html --log-to tensorboard:locked/board",
)
IN_THE_LOCKED_FOLDER = ("run train.py", "emulate cluster.toml -- train.py", "simulate cluster.toml", "watch", "demo")

SCRIPT = """
import ctypes, json, os, shlex, sys
from pathlib import Path
from uneven_bench.mutations import seeds
from uneven_bench.mutations.targets import Caught, idle, quietly
from uneven.errors import UnevenError

def tried(line):
    with Caught() as caught:
        quietly(shlex.split(line))
    error = caught.error
    return str(error) if isinstance(error, UnevenError) else f"FAULT {error!r}" if error else "taken"

here, locked = Path.cwd(), Path("locked")
seeds.lay_out(here)
seeds.lay_out(locked)
with idle():  # what is imported later may be asked for from the locked folder
    for words in seeds.COMMANDS:
        with Caught():
            quietly(words)
    import torch.utils.tensorboard, uneven.journal.report.track.tensorboard, uneven.journal.report.track.tracking
commands, inside = json.loads(sys.argv[1]), json.loads(sys.argv[2])
if inside:
    os.chdir("locked")
locked = here / "locked"
locked.chmod(0)
if os.geteuid() == 0:  # what root may do beyond an ordinary user, who may enter no folder that its owner has locked
    libc, version = ctypes.CDLL(None, use_errno=True), (ctypes.c_uint32 * 2)(0x20080522, 0)
    held = (ctypes.c_uint32 * 6)()  # twice 32 of them: effective, permitted, inheritable
    assert libc.capget(version, held) == 0
    passing_by = 1 << 1 | 1 << 2  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
    held[0], held[1] = held[0] & ~passing_by, held[1] & ~passing_by
    assert libc.capset(version, held) == 0, os.strerror(ctypes.get_errno())
print(json.dumps({line: tried(line) for line in commands}))
"""


def said(tmp_path: Path, commands: tuple[str, ...], *, inside: bool = False) -> dict[str, str]:
    script = tmp_path / "try.py"
    script.write_text(SCRIPT)
    place = tmp_path / "place"
    place.mkdir()
    (place / "locked").mkdir()
    try:
        done = run_script([script, json.dumps(commands), json.dumps(inside)], cwd=place, timeout_s=200)
    finally:
        (place / "locked").chmod(0o700)
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


def refused(words: str) -> bool:
    return "Permission denied" in words and "FAULT" not in words


def test_a_locked_folder_is_named(tmp_path: Path) -> None:
    found = said(tmp_path, COMMANDS)
    assert len(found) == len(COMMANDS)
    assert {line: words for line, words in found.items() if "locked" not in words or not refused(words)} == {}


def test_a_locked_working_directory_is_told(tmp_path: Path) -> None:
    found = said(tmp_path, IN_THE_LOCKED_FOLDER, inside=True)
    assert {line: words for line, words in found.items() if not refused(words)} == {}
