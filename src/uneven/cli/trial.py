"""A process that finds out what torch can do here by using it: ``python -m uneven.cli.trial``.

It is a process of its own so that a torch that hangs or crashes takes nobody with it. It starts a second
one, and both add their tensors up through gloo. Each line that it prints is a JSON object with fields of
:class:`uneven.cli.findings.TorchFacts`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from datetime import timedelta
from typing import Any

HOST = "127.0.0.1"
WAIT = timedelta(seconds=30)


def first() -> None:
    """Report on torch, then meet the second process."""
    started_s = time.monotonic()
    command = [sys.executable, "-P", "-m", "uneven.cli.trial", "second"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, text=True) as other:
        import torch
        from torch import distributed
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        _say(
            version=torch.__version__,
            cuda_build=torch.version.cuda or "",
            cuda_devices=torch.cuda.device_count(),
            nccl=distributed.is_nccl_available(),
        )
        store = TCPStore(HOST, 0, is_master=True, wait_for_workers=False, timeout=WAIT)
        print(store.port, file=other.stdin, flush=True)
        _say(gloo=_sum(store, rank=0) == 3.0, gloo_s=time.monotonic() - started_s)


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


def _say(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    second() if sys.argv[1:] == ["second"] else first()
