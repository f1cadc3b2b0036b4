"""A program in a forked process does what it does in one that ``subprocess`` starts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from uneven_bench.forked.scripts import Script, run_script, running_pids

TELLS = """
import atexit, json, multiprocessing, os, pickle, signal, sys, threading
class Own: pass
atexit.register(print, "at exit")
told = dict(
    argv=sys.argv, first=sys.path[0], name=__name__, file=globals().get("__file__"),
    package=__package__, word=os.environ.get("WORD"), home="HOME" in os.environ, directory=os.getcwd(),
    main=sys.modules["__main__"].__dict__ is globals(), pickled=type(pickle.loads(pickle.dumps(Own()))) is Own,
    thread=threading.current_thread() is threading.main_thread(), threads=threading.active_count(),
    process=multiprocessing.current_process().name, input=sys.stdin.read(), tty=sys.stdout.isatty(),
    interrupt=signal.getsignal(signal.SIGINT) is signal.default_int_handler,
    child=str(signal.getsignal(signal.SIGCHLD)), pipe=str(signal.getsignal(signal.SIGPIPE)),
    streams=[sys.stdout.errors, sys.stderr.errors, sys.stdout.line_buffering, sys.stderr.line_buffering],
    hook=sys.excepthook is sys.__excepthook__, files=len(os.listdir("/proc/self/fd")),
)
print(json.dumps(told, sort_keys=True))
print("an error", file=sys.stderr)
"""


def real(program: list[object], cwd: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, program)], cwd=cwd, env=env, capture_output=True, text=True, timeout=60,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip


@pytest.mark.parametrize("program", [["tells.py", "-x", "a b", ""], ["-c", TELLS, "-x"], ["-m", "some.tells", "-x"]])
def test_it_sees_what_a_real_one_sees(program: list[object], tmp_path: Path) -> None:
    (tmp_path / "tells.py").write_text(TELLS)
    (tmp_path / "some").mkdir()
    (tmp_path / "some" / "tells.py").write_text(TELLS)
    env = {**os.environ, "WORD": "said", "PYTHONPATH": "/elsewhere"}
    forked, plain = run_script(program, cwd=tmp_path, env=env), real(program, tmp_path, env)
    assert (forked.returncode, forked.stderr) == (0, plain.stderr)
    told, *rest = forked.stdout.splitlines()
    expected, *other = plain.stdout.splitlines()
    assert json.loads(told) == json.loads(expected)
    assert rest == other == ["at exit"]


@pytest.mark.parametrize(
    "then",
    ["sys.exit(3)", "sys.exit('told why')", "sys.exit()", "os._exit(7)", "os.kill(os.getpid(), 9)", "1 / 0",
     "raise KeyboardInterrupt", "os.abort()", "sys.stdout.write('kept back')",
     "threading.Thread(target=lambda: (time.sleep(0.2), print('late'))).start()",
     "sys.excepthook = lambda *_: print('hooked'); 1 / 0", "sys.exit(-1)", "sys.exit(True)", "sys.exit(257)",
     "file = open('kept.txt', 'w'); file.write('kept back')", "os.close(1); print('nobody hears it')",
     "import logging, logging.handlers as h; logging.root.addHandler(h.MemoryHandler(9, 99, logging.StreamHandler()));"
     "logging.error('told at exit')"],
)  # fmt: skip
def test_it_ends_as_a_real_one(then: str, tmp_path: Path) -> None:
    program: list[object] = ["-c", f"import os, sys, threading, time\nprint('begun', flush=True)\n{then}"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    plain, left = real(program, tmp_path, env), {path.name: path.read_text() for path in tmp_path.iterdir()}
    for path in tmp_path.iterdir():
        path.unlink()
    forked = run_script(program, cwd=tmp_path, env=env)
    assert (forked.returncode, forked.stdout) == (plain.returncode, plain.stdout)
    assert forked.stderr.splitlines()[-1:] == plain.stderr.splitlines()[-1:]
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == left


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_signals_reach_it_and_what_it_printed_can_be_read_while_it_runs(unbuffered: str) -> None:
    code = "import sys, time\nprint('out')\nprint('err', file=sys.stderr)\ntime.sleep(600)"
    with Script(["-c", code], merged=True, env={**os.environ, "PYTHONUNBUFFERED": unbuffered}) as script:
        with pytest.raises(subprocess.TimeoutExpired):
            script.wait(0.05)
        while "err\n" not in script.printed():
            assert script.poll() is None
            time.sleep(0.01)
        assert ("out" in script.printed()) is bool(unbuffered), "output is kept back until the end, as ever"
        script.send_signal(signal.SIGINT)
        out, err = script.communicate(60)
    assert script.returncode == -signal.SIGINT
    assert out.splitlines()[0 if unbuffered else -1] == "out"
    assert err == ""


def test_all_of_its_group_ends_with_the_block_and_a_leak_is_seen(pytestconfig: pytest.Config) -> None:
    leak_check = pytestconfig.pluginmanager.get_plugin(str(Path(__file__).parents[2] / "conftest.py"))
    assert leak_check is not None
    code = "import subprocess, time; print(subprocess.Popen(['sleep', '600']).pid, flush=True); time.sleep(600)"
    with Script(["-c", code]) as script:
        while not script.printed().endswith("\n"):
            time.sleep(0.01)
        child = psutil.Process(int(script.printed()))
        assert script.pid in running_pids()
        assert any(one.startswith(f"process {script.pid} ") for one in leak_check._new_processes(frozenset()))
    assert script.returncode == -signal.SIGKILL
    assert script.pid not in running_pids()
    assert psutil.wait_procs([child], timeout=20)[1] == []


def test_what_cannot_be_run_says_so(tmp_path: Path) -> None:
    gone = run_script(["gone.py"], cwd=tmp_path)
    assert gone.returncode != 0
    assert "FileNotFoundError" in gone.stderr
    nothing = run_script(["-m", "no_such_module"], cwd=tmp_path)
    assert nothing.returncode != 0
    assert "no module that can be run is named no_such_module" in nothing.stderr
