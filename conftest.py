"""A test that leaves something behind fails: a thread, a child process, a listening port, a variable, a temporary file.

What is meant to live longer is named in ``LASTING_…`` below, or kept by the pool of ``uneven.testing.ranks``.
"""

import contextlib
import gc
import getpass
import glob
import importlib.util
import os
import shutil
import signal
import socket
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from multiprocessing import forkserver, util
from pathlib import Path
from typing import Any
from unittest import mock

import hypothesis
import psutil
import pytest

# Before anything imports numpy or torch, whose threads burn processor time while they wait for one another. Where more
# processes run than there are cores that is most of the time: the tests of a predictor took twice what they take so.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# torch has the names of both ends of a connection looked up, for a log that nobody reads. Where the answer of a name
# server is lost, that is five seconds in which all ranks stand, more than many a test lets them wait. So none is asked,
# and torch does not warn of each name that it has not found.
os.environ.setdefault("RES_OPTIONS", "attempts:0")
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

# A shell that starts this in the background lets it, and all that it starts, ignore Ctrl-C, which tests press.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)

# One tree gets one verdict, however busy the machine is: always the same examples, so few are enough.
# HYPOTHESIS_PROFILE=search looks for new ones instead.
UNTIMED = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
hypothesis.settings.register_profile("repeatable", **UNTIMED, max_examples=30, derandomize=True, database=None)
hypothesis.settings.register_profile("search", **UNTIMED, print_blob=True)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

PATIENCE_S = 30.0
"""How long a thread, process or port may take to end, on a busy machine; only a leak takes it all."""

LASTING_THREADS = ("pytest_timeout",)
"""Beginnings of names of threads that outlive a test."""

LASTING_HOMES = ("zmq.utils.garbage",)
"""Modules whose threads outlive a test: pyzmq keeps one, from the first message that it sends without a copy."""

LASTING_COMMANDS = ("multiprocessing.resource_tracker",)
"""Parts of command lines of child processes that Python itself keeps."""

LASTING_VARIABLES = ("PYTEST_", "KMP_", "COV_", "TORCHINDUCTOR_")
"""Beginnings of names of variables that pytest, OpenMP (at import of scikit-learn) or torch set for good."""

LASTING_FILES = ("pymp-", "pytest-of-", "torchinductor_")
"""Beginnings of names of temporary files that outlive a test: of Python, for as long as a process lives; of pytest; and
what torch has compiled."""

TOGETHER = "tests/test_"
"""Beginning of names of files whose tests run in one process: they parse the whole source."""

IMPORTED = ("networkx", "numba", "optuna", "uneven.cluster.virtual")
"""What several processes of tests import, which starts no thread."""

LISTED = Path("/proc/thread-self/children").exists()
"""Whether the system lists the children of each thread."""


def pytest_xdist_auto_num_workers() -> int:
    """Two processes more than there are cores, because tests of several processes wait for one another."""
    return len(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)) + 2


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """One process runs all tests of a file, and of the files that belong together."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Spread(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return TOGETHER if nodeid.startswith(TOGETHER) else super()._split_scope(nodeid)

    return Spread(config, log)


def pytest_configure(config: pytest.Config) -> None:
    """Temporary files go into a folder that only this process uses, so that the check sees what a test leaves there.
    What is meant to last stays where it would be: the folders of ``tmp_path``, and what torch has compiled."""
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        if hasattr(os, "fork"):
            _fork_workers()
        return  # pytest-xdist's first process runs no test itself, and the others have a folder each
    usual = Path(tempfile.gettempdir())
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(usual))
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(usual / f"torchinductor_{getpass.getuser()}"))
    folder = tempfile.mkdtemp(prefix="uneven-tests-")
    Path(folder).chmod(0o1777)  # some tests are an ordinary user for a while
    # multiprocessing's own goes at exit with priority -100, so only then.
    util.Finalize(None, shutil.rmtree, (folder,), {"ignore_errors": True}, exitpriority=-200)
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    if hasattr(config, "workerinput") and hasattr(os, "fork"):
        from uneven.testing.ranks import _fork_server
        from uneven_bench.forked import run

        _fork_server.open(run.Forked)  # first: its forks must not know the other
        with mock.patch.object(util, "spawnv_passfds", run.fork_server):
            forkserver.ensure_running()


def _fork_workers() -> None:
    """Let pytest-xdist fork its processes from one that has imported torch, and each of them what its ranks are forked
    from: eight imports of torch less, of four seconds of processor time each."""
    from execnet import gateway_base, gateway_io

    from uneven_bench.forked.scripts import Script

    ending = threading.Lock()

    class Worker(gateway_base.Popen2IO):
        def __init__(self, words: list[str], execmodel: Any) -> None:
            (theirs, requests), (replies, answers) = os.pipe(), os.pipe()
            found = [name for name in IMPORTED if importlib.util.find_spec(name)]
            self.script = Script(words[words.index("-c") :], imported=found, streams=(theirs, answers, 2))
            os.close(theirs)
            os.close(answers)
            super().__init__(open(requests, "wb"), open(replies, "rb"), execmodel)  # noqa: SIM115

        def wait(self) -> int:
            with ending:  # threads of several workers call this
                code = self.script.wait()
                self.script.close()
                return code

        def kill(self) -> None:
            os.kill(self.script.pid, signal.SIGKILL)

    vars(gateway_io)["Popen2IOMaster"] = Worker


def pytest_collection() -> None:
    gc.disable()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark the tests of the second tier that their folder tells."""
    if item.nodeid.startswith(("tests/system/", "benchmarks/tests/")):
        item.add_marker("rest")


def pytest_collection_finish() -> None:
    """What has been imported and collected stays to the end. To look through it for garbage over and over took an
    eighth of the processor time of tests that run in this process."""
    gc.collect()
    gc.freeze()
    gc.enable()
    gc.set_threshold(10_000, 20, 20)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Item) -> Iterator[None]:
    """A row of docs/how-to/inputs/ is what its test has shown."""
    with sys.modules["brought"].judged(pyfuncitem) if "brought" in pyfuncitem.keywords else contextlib.nullcontext():
        return (yield)


def _threads() -> set[str]:
    return {
        f"thread {thread.name} ({thread.native_id})"
        for thread in threading.enumerate()
        if thread.is_alive()
        and not thread.name.startswith(LASTING_THREADS)
        and type(thread).__module__ not in LASTING_HOMES
    }


def _children(pid: int) -> list[int]:
    """Read from where Linux lists them by thread: to ask every process of a machine for its parent, before and after
    each test, took a tenth of the time of all tests."""
    found: list[int] = []
    if not LISTED:
        with contextlib.suppress(psutil.NoSuchProcess):
            found = [child.pid for child in psutil.Process(pid).children()]
    for path in glob.glob(f"/proc/{pid}/task/*/children"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended
            found += [int(child) for child in Path(path).read_text().split()]
    return found


def _below(pid: int, without: frozenset[int]) -> Iterator[int]:
    """Children, their children and so on."""
    for child in _children(pid):
        if child not in without:
            yield child
            yield from _below(child, without)


def _new_processes(before: frozenset[int]) -> set[str]:
    """What runs below this process and did not run before, in words."""
    kept, scripts = (sys.modules.get(name) for name in ("uneven.testing.ranks", "uneven_bench.forked.scripts"))
    found = set()
    started = scripts.running_pids() if scripts else frozenset()
    for pid in {*started, *_below(os.getpid(), kept.kept_pids() if kept else frozenset())}:
        if pid in before or pid == vars(forkserver._forkserver)["_forkserver_pid"]:
            continue
        try:
            command = " ".join(psutil.Process(pid).cmdline())
        except psutil.ZombieProcess:
            command = "(ended, but nobody has waited for it)"
        except psutil.NoSuchProcess:
            continue
        if not any(part in command for part in LASTING_COMMANDS):
            found.add(f"process {pid} {command[:100]}")
    return found


def _sockets() -> Iterator[socket.socket]:
    """Those that this process has open, each as a copy."""
    for name in os.listdir("/dev/fd"):
        with contextlib.suppress(OSError):  # closed by now
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                with socket.socket(fileno=os.dup(int(name))) as one:
                    yield one


def _ports() -> set[str]:
    """Each socket is asked itself: to read the kernel's table of all connections of the machine, twice for each test,
    took a tenth of the processor time of all tests."""
    return {
        f"listening port {one.getsockname()[1]}"
        for one in _sockets()
        if one.family in (socket.AF_INET, socket.AF_INET6) and one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    }


def _variables() -> set[str]:
    return {f"variable {k}={v}" for k, v in os.environ.items() if not k.startswith(LASTING_VARIABLES)}


def _files() -> set[str]:
    return {f"temporary {name}" for name in os.listdir(tempfile.gettempdir()) if not name.startswith(LASTING_FILES)}


def _footprint() -> set[str]:
    return _threads() | _ports() | _variables() | _files()


@pytest.fixture(autouse=True)
def leaves_nothing_behind() -> Iterator[None]:
    """Compare before and after; automatic, so it is set up first and looks last."""
    before, running = _footprint(), frozenset(psutil.pids())
    yield
    deadline = time.monotonic() + PATIENCE_S
    while left := (_footprint() - before) | _new_processes(running):
        if time.monotonic() > deadline:
            break
        gc.collect()
        time.sleep(0.05)
    gone = {name for name in before - _footprint() if name.startswith("variable")}
    if left or gone:
        pytest.fail(f"left behind: {sorted(left)}; taken away: {sorted(gone)}", pytrace=False)
