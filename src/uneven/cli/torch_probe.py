"""A process that tests torch on this machine: ``python -m uneven.cli.torch_probe SECONDS``.

It is a separate process so that a torch that hangs or crashes does not stop ``uneven doctor``. It starts a second one,
and both sum their tensors through gloo. Each printed line is a JSON object with fields of
:class:`uneven.cli.doctor.TorchFacts`.
"""

import atexit
import json
import signal
import subprocess
import sys
from datetime import timedelta
from typing import Any

from uneven.runtime.tcp_store import tcp_store

HOST = "127.0.0.1"
WAIT = timedelta(seconds=30)


def main(limit_s: str, second: bool) -> None:
    """Sum tensors with the other process; the first one starts the second, sends it the port, and reports."""
    if not second:
        # Before the import of torch, so that both processes import it at the same time.
        command = [sys.executable, "-P", "-m", "uneven.cli.torch_probe", limit_s, "second"]
        # Without its own errors: the first process reports, and kills the second one in the middle of its traceback.
        other = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        # The second process must not outlive a failed first one.
        atexit.register(other.kill)
    import torch
    from torch import distributed

    if second:
        port = sys.stdin.readline()
        if not port:
            return  # the first process has failed, and reports it
        store = tcp_store(HOST, int(port), timeout=WAIT)
    else:
        cuda, rocm = torch.version.cuda, torch.version.hip
        build = f"CUDA {cuda}" if cuda else f"ROCm {rocm}" if rocm else "CPU"
        nccl, devices = distributed.is_nccl_available(), torch.cuda.device_count()
        _report(version=torch.__version__, build=build, devices=devices, nccl=nccl)
        store = tcp_store(HOST, 0, is_master=True, wait_for_workers=False, timeout=WAIT)
        print(store.port, file=other.stdin, flush=True)
    distributed.init_process_group("gloo", store=store, rank=int(second), world_size=2, timeout=WAIT)
    number = torch.tensor([1.0 + second])
    distributed.all_reduce(number)
    distributed.destroy_process_group()
    if not second:
        _report(gloo=number.item() == 3.0)


def _report(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    if hasattr(signal, "alarm"):  # not on Windows
        signal.alarm(int(sys.argv[1]))  # ends the process even if torch hangs
    main(sys.argv[1], sys.argv[2:] == ["second"])
