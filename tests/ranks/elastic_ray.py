"""What the test of workers that Ray places looks at, run in a program of its own. Its last line is JSON.

Usage: elastic_ray.py FOLDER. The cluster's head has no CPU slot. A node comes with one, for worker 1 of the run; then
one for worker 2, which is lost with it; then one for worker 3, which takes its place.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from test_elastic import HERE, free_port

from ray_world import NODE, cluster


def until(run: subprocess.Popen[str], there: Callable[[], bool]) -> None:
    """Wait; the run must not end before."""
    while not there():
        if run.poll() is not None:
            raise SystemExit(f"the run has ended too early: {run.communicate()[1]}")
        time.sleep(0.05)


def main(folder: Path) -> None:
    """Lose a node and add another one, while a run trains."""
    with cluster(0, 1) as there:
        environment = {**os.environ, "RAY_ADDRESS": there.address}
        line = [
            sys.executable, "-m", "uneven", "run", "--nproc", 1, "--elastic", "1:4", "--ray", 2, "--rdzv-endpoint",
            f"127.0.0.1:{free_port()}", "--run-dir", folder / "run", HERE / "elastic_script.py", folder, 1, 0,
            "till@3", "stay@2",
        ]  # fmt: skip
        run = subprocess.Popen(list(map(str, line)), env=environment, stderr=subprocess.PIPE, text=True)
        try:
            until(run, (folder / "1.jsonl").exists)
            second = there.add_node(num_cpus=1, **NODE)
            until(run, (folder / "stays").exists)
            there.remove_node(second, allow_graceful=False)
            there.add_node(num_cpus=1, **NODE)
            said = run.communicate()[1]
        finally:
            run.kill()
    print(json.dumps({"code": run.returncode, "said": said}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
