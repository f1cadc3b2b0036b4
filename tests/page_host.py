"""A process that has imported what nearly every page imports, and forks itself for each page.

The start of Python with torch and scikit-learn takes several seconds, most of what a page takes. A page still has a
process of its own, which ends as every Python does.

Its standard input names a folder a line; there ``page.py`` is run. It answers with the exit code, a line each.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import signal
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__)
LIMIT_S = 110
"""How long a page may take; what hangs is killed by the kernel's alarm."""


class PageHost:
    """The process, seen from the tests."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(HERE)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"}, start_new_session=True,
        )  # fmt: skip

    def run(self, page: str, directory: Path) -> subprocess.CompletedProcess[str]:
        """Run a script in ``directory``; everything it prints goes to ``stderr`` and ``stdout`` of the result."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        (directory / "page.py").write_text(page)
        self._process.stdin.write(json.dumps(str(directory)) + "\n")
        self._process.stdin.flush()
        code = int(self._process.stdout.readline())
        out, err = ((directory / name).read_text() for name in ("stdout.txt", "stderr.txt"))
        return subprocess.CompletedProcess(["page.py"], code, out, err)

    def close(self) -> None:
        """End it, and a page that may be running."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()


def _serve() -> bool:
    """Answer until the end of the input; in a forked child return True: it is to run the page."""
    import sklearn.datasets  # noqa: F401
    import torch._dynamo  # noqa: F401 — every optimizer imports it

    gc.freeze()  # a collection in a child would touch, and so copy, all of it

    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            os.chdir(json.loads(line))
            return True
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
    return False


def _become_a_script() -> None:
    """Take the streams, the arguments and the module path that ``python page.py`` would have."""
    signal.alarm(LIMIT_S)
    for stream, name in ((0, os.devnull), (1, "stdout.txt"), (2, "stderr.txt")):
        opened = os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        os.dup2(opened, stream)
        os.close(opened)
    sys.argv = ["page.py"]
    sys.path[0] = os.getcwd()


if __name__ == "__main__" and _serve():
    _become_a_script()
    runpy.run_path("page.py", run_name="__main__")
