"""A process that finds out what torch can do here by using it: ``python -m uneven.cli.trial SECONDS``.

It is a separate process so that a torch that hangs or crashes does not stop ``uneven doctor``. It starts a second
one, and both add their tensors up through gloo. Each line that it prints is a JSON object with fields of
:class:`uneven.cli.findings.TorchFacts`.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from datetime import timedelta
from typing import Any

HOST = "127.0.0.1"
WAIT = timedelta(seconds=30)


def first(limit_s: str) -> None:
    """Report on torch, then meet the second process."""
    command = [sys.executable, "-P", "-m", "uneven.cli.trial", limit_s, "second"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, text=True) as other:
        import torch
        from torch import distributed
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        cuda, rocm = torch.version.cuda, torch.version.hip
        _report(
            version=torch.__version__,
            build=f"CUDA {cuda}" if cuda else f"ROCm {rocm}" if rocm else "CPU",
            devices=torch.cuda.device_count(),
            nccl=distributed.is_nccl_available(),
        )
        store = TCPStore(HOST, 0, is_master=True, wait_for_workers=False, timeout=WAIT)
        print(store.port, file=other.stdin, flush=True)
        _report(gloo=_sum(store, rank=0) == 3.0)


def second() -> None:
    """Learn the port from standard input, then meet the first process; end quietly if that one is gone."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    port = sys.stdin.readline()
    if port:
        _sum(TCPStore(HOST, int(port), timeout=WAIT), rank=1)


def _sum(store: Any, rank: int) -> float:
    import torch
    from torch import distributed

    distributed.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=WAIT)
    number = torch.tensor([rank + 1.0])
    distributed.all_reduce(number)
    distributed.destroy_process_group()
    return number.item()


def _report(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    signal.alarm(int(sys.argv[1]))  # ends the process also where torch hangs
    second() if sys.argv[2:] else first(sys.argv[1])
