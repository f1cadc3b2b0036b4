"""Ways to take a step: each arm trains its own replica, and takes a plain, a factor or a refresh step on request."""

import importlib
import importlib.metadata
import importlib.util
import os
import sys
from abc import ABC, abstractmethod
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import uneven
from uneven.errors import ConfigError

PERIODS = (10, 100)
KINDS = {"plain": 1, "factor": PERIODS[0], "refresh": PERIODS[1]}  # kind of step → a clock at which it is due
RIVAL_AT = "KFAC_PYTORCH"  # the environment variable with kfac-pytorch's repository, if it is not installed
LR, DAMPING = 0.01, 0.03


def rival() -> Any:
    """Return kfac-pytorch's ``KFACPreconditioner``; None without its repository (it is not on PyPI)."""
    if (where := os.environ.get(RIVAL_AT)) and where not in sys.path:
        sys.path.insert(0, where)
    if importlib.util.find_spec("kfac") is None:
        return None
    try:
        return getattr(importlib.import_module("kfac.preconditioner"), "KFACPreconditioner", None)
    except importlib.metadata.PackageNotFoundError as error:
        raise ConfigError(
            f"{RIVAL_AT}={where!r} holds kfac-pytorch's source, which asks for its installed version: run "
            f"`pip install --no-deps --target FOLDER {where}`, and set {RIVAL_AT} to FOLDER"
        ) from error


class StepArm(ABC):
    """A way to take steps of its own ``model``."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def due(self, kind: str) -> None:  # noqa: B027 - most arms have one kind of step
        """Choose the kind of the next step."""

    @abstractmethod
    def step(self, x: Tensor, y: Tensor) -> None:
        """Take a step on this worker's part of a batch, x (samples, …) and y (samples,)."""

    def close(self) -> None:  # noqa: B027 - most have nothing to let go of
        """Let go of groups and hooks."""


class Plain(StepArm):
    """An optimizer of torch: under DDP, or in the plain loop without other workers."""

    def __init__(self, model: nn.Module, name: str) -> None:
        super().__init__(model)
        together = dist.is_initialized()
        self._called = DistributedDataParallel(model, gradient_as_bucket_view=True) if together else model
        self.optimizers = optimizers(model, name)
        self.optimizer = self.optimizers[0]

    def step(self, x: Tensor, y: Tensor) -> None:
        F.cross_entropy(self._called(x), y).backward()
        self.finish()
        for one in self.optimizers:
            one.step()
            one.zero_grad()

    def finish(self) -> None:
        """Finish the gradients before the step."""


def optimizers(model: nn.Module, name: str, lr: float = LR) -> list[torch.optim.Optimizer]:
    """Return the optimizers of a name: sgd, adamw, or muon on weights with two axes and AdamW on the others."""
    if name == "sgd":
        return [torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)]
    if name == "adamw":
        return [torch.optim.AdamW(model.parameters(), lr=lr)]
    square, others = by_axes(model)
    return [torch.optim.Muon(square, lr=lr), torch.optim.AdamW(others, lr=lr)]


def by_axes(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Return the weights with two axes, and the others."""
    weights = list(model.parameters())
    return [one for one in weights if one.ndim == 2], [one for one in weights if one.ndim != 2]


class KfacPytorch(Plain):
    """kfac-pytorch over SGD. ``share``: its ``grad_worker_fraction``; ``options``: for its preconditioner."""

    def __init__(self, model: nn.Module, share: float, **options: Any) -> None:
        super().__init__(model, "sgd")
        how = {"factor_update_steps": PERIODS[0], "inv_update_steps": PERIODS[1], "damping": DAMPING, "lr": LR}
        self.part = rival()(model, grad_worker_fraction=share, **(how | options))
        self.sent_bytes = 0.0

    def due(self, kind: str) -> None:
        self.part._steps = KINDS[kind]

    def finish(self) -> None:
        self.part.step()

    def count(self) -> None:
        """Count the bytes of its exchanges as ours: a ring's for a sum, one copy for a broadcast's receivers."""
        module: Any = importlib.import_module("kfac.distributed")
        whole, arm = dist, self

        class CountedExchanges:
            def __getattr__(self, name: str) -> Any:
                return getattr(whole, name)

            def all_reduce(self, tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
                size = whole.get_world_size(kwargs.get("group"))
                arm.sent_bytes += 2 * (size - 1) / size * tensor.nbytes
                return whole.all_reduce(tensor, *args, **kwargs)

            def broadcast(self, tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
                size = whole.get_world_size(kwargs.get("group"))
                arm.sent_bytes += (size - 1) / size * tensor.nbytes  # the mean over the ranks
                return whole.broadcast(tensor, *args, **kwargs)

        self._module: Any = module
        module.dist = CountedExchanges()

    def uncount(self) -> None:
        self._module.dist = dist


def under(part: Any, model: nn.Module) -> list[torch.optim.Optimizer]:
    """Return the optimizers that a part of ours needs."""
    if isinstance(part, uneven.Muon):
        square, others = by_axes(model)
        return [torch.optim.SGD(square, lr=LR, weight_decay=0.1), torch.optim.AdamW(others, lr=LR)]
    return [torch.optim.SGD(model.parameters(), lr=LR, momentum=0.0 if isinstance(part, uneven.SOAP) else 0.9)]


class PartArm(StepArm):
    """A part of ours in a session. ``part`` has the periods of :data:`PERIODS`, None for the session only; ``batch`` is
    the global one, ``balance`` the session's."""

    def __init__(self, model: nn.Module, part: Any, batch: int, balance: str = "even") -> None:
        super().__init__(model)
        self.part = part
        self._batch = batch
        self.session = uneven.Session(callbacks=[part] if part else [], balance=balance, sync="bsp")
        self.optimizers = under(part, model)
        self.optimizer = self.optimizers[0]
        self.session.setup(model, *self.optimizers, gradient_as_bucket_view=True)

    def due(self, kind: str) -> None:
        if self.part is not None:
            self.part.clock = KINDS[kind]
            self.part.stepped()

    def step(self, x: Tensor, y: Tensor) -> None:
        """Take a step on the samples that the balancer gives this worker, x (samples, …) and y (samples,)."""
        with self.session.step(self._batch) as n:
            F.cross_entropy(self.model(x[:n]), y[: len(y) // len(x) * n]).backward()
            for one in self.optimizers:
                one.step()
                one.zero_grad()

    @property
    def sent_bytes(self) -> float:
        """The bytes on the part's lines since the last record."""
        return float(sum(line.traffic.sent_bytes for line in self.part.run.lines.opened))

    def close(self) -> None:
        self.session.close()
