"""The leak check of conftest.py, seen to fail for each kind of leak."""

import os
import re
import subprocess
import sys
from pathlib import Path

LEAKS = """
import os, psutil, socket, subprocess, sys, tempfile, threading

kept = []

def test_thread():
    threading.Thread(target=threading.Event().wait, name="forgotten", daemon=True).start()

def test_process():
    kept.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]))

def test_grandchild():
    kept.append(subprocess.Popen(["sh", "-c", "sleep 61 & wait"]))

def test_zombie():
    kept.append(subprocess.Popen(["true"]))

def test_port():
    listener = socket.create_server(("127.0.0.1", 0))
    kept.append(listener)

def test_variable_set():
    os.environ["FORGOTTEN"] = "1"

def test_variable_removed():
    del os.environ["FORGOTTEN"]

def test_temporary_folder():
    tempfile.mkdtemp(prefix="torchelastic_")

def test_temporary_file_of_a_child():
    code = "import tempfile; tempfile.mkstemp(prefix='forgotten-')"
    subprocess.check_call([sys.executable, "-c", code])

def test_clean():
    with tempfile.TemporaryDirectory():
        pass
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()

def test_tidy_up():
    kept.pop().close()
    for process in psutil.Process().children(recursive=True):
        process.kill()
    for process in kept:
        process.wait()
"""


def test_every_kind_of_leak_fails(tmp_path: Path) -> None:
    conftest = (Path(__file__).parents[1] / "conftest.py").read_text()
    (tmp_path / "conftest.py").write_text(conftest.replace("PATIENCE_S = 30.0", "PATIENCE_S = 0.2"))
    (tmp_path / "test_leaks_inside.py").write_text(LEAKS)
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        capture_output=True, text=True, timeout=60, cwd=tmp_path,
        env={k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")},
    )  # fmt: skip
    assert re.search(r"11 passed, 9 errors", run.stdout), run.stdout
    for leak in ("thread forgotten", "process ", "listening port ", "variable FORGOTTEN=1",
                 "temporary torchelastic_", "temporary forgotten-"):  # fmt: skip
        assert f"left behind: ['{leak}" in run.stdout
    assert re.search(r"left behind: \[[^\]]* sleep 61'", run.stdout)
    assert re.search(r"left behind: \[[^\]]*nobody has waited for it\)'\]", run.stdout)
    assert "taken away: ['variable FORGOTTEN=1']" in run.stdout
