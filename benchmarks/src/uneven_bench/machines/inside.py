"""``python -m uneven_bench.machines.inside DISK CLOCK MODULE …``: MODULE, on a host with a disk and a clock.

It runs inside of :mod:`uneven_bench.elastic.inside`, so its mount ends with the process and its forks. DISK is the
folder of a small file system, or "" for none.
"""

import runpy
import subprocess
import sys
from pathlib import Path

from uneven_bench.machines.clock import follow

if __name__ == "__main__":
    _, disk, clock, module, *rest = sys.argv
    if disk:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", disk], check=True)
        for name in ("tmp", "run"):
            Path(disk, name).mkdir()
    follow(Path(clock))
    sys.argv = [module, *rest]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
