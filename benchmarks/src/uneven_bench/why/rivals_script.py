"""A training script as people write it, with one slow worker: ``rivals_script.py TOOL FAULT RANK SECONDS``.

With the tool ``traceml`` it has the two calls of TraceML's quickstart; with ``uneven`` it has none.
"""

import sys
import time
from contextlib import nullcontext
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

STEPS, SAMPLES, WIDTH = 60, 8, 64
_STEP_S = 0.02


class _DelayedSamples(Dataset[torch.Tensor]):
    def __init__(self, slow_s: float, length: int) -> None:
        self._slow_s = slow_s
        self._length = length

    def __len__(self) -> int:
        return STEPS * SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self._slow_s / SAMPLES)
        return torch.randn(self._length, WIDTH)


class _LateGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, seconds: float) -> torch.Tensor:
        ctx.seconds = seconds
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        time.sleep(ctx.seconds)
        return gradient, None


class _SlowModel(nn.Module):
    """A step takes time per sequence element, and in one of three places more time."""

    def __init__(self, blocked_s: float, computed_s: float, late_s: float) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 8))
        self._blocked_s = blocked_s
        self._computed_s = computed_s
        self._late_s = late_s

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(_STEP_S * x.shape[1] + self._blocked_s)
        end_s = time.thread_time() + self._computed_s
        while time.thread_time() < end_s:
            torch.ones(96, 96) @ torch.ones(96, 96)
        first = next(self.layers.parameters())  # its gradient passes the late one
        made: torch.Tensor = self.layers(_LateGradient.apply(first.sum() * 0 + x, self._late_s))
        return made


def main(tool: str, fault: str, rank: int, seconds: float) -> None:
    """Train; ``rank`` is slower by about these seconds a step."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    mine = fault if dist.get_rank() == rank else ""
    traced: Any = nullcontext
    if tool == "traceml":
        traceml: Any = import_module("traceml_ai")
        traceml.init(mode="auto")
        traced = traceml.trace_step
    late = {name: seconds * (mine == name) for name in ("data", "blocked", "processor", "backward", "optimizer")}
    model = nn.parallel.DistributedDataParallel(_SlowModel(late["blocked"], late["processor"], late["backward"]))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    length = 1 + round(seconds / _STEP_S) * (mine == "batch")
    for x in DataLoader(_DelayedSamples(late["data"], length), batch_size=SAMPLES):
        with traced(model):
            optimizer.zero_grad(set_to_none=True)
            model(x).square().mean().backward()
            optimizer.step()
            time.sleep(late["optimizer"])


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
