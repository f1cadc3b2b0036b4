"""The tasks that the sites of ``uneven bench far-sites`` learn in virtual time."""

from collections.abc import Callable, Sequence
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from uneven.cluster.virtual.datasets import images
from uneven.cluster.virtual.task import Classification
from uneven.errors import UnknownNameError
from uneven.precondition.muon.muon import Orthogonalisation, orthogonalised
from uneven_bench.harness.data import shakespeare
from uneven_bench.workloads.resnet import resnet

Split = tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]  # inputs and labels to train, and held out
MOMENTUM = 0.9
PAST = 16  # characters that a guess looks at
_GROUPS = 2
_LOOKED_AT = 2000
_CALIBRATED = 4  # batches of each site that give batch norm's statistics for an evaluation


class LossTask(Classification):
    """A :class:`~uneven.cluster.virtual.task.Classification` that also keeps the held-out loss of each evaluation.
    ``losses``: in the order of the evaluations."""

    def __init__(self, module: nn.Module, data: Split, learning_rate: float) -> None:
        super().__init__(module, *data, learning_rate=learning_rate, momentum=MOMENTUM)
        self.losses: list[float] = []

    @torch.no_grad()
    def accuracy(self, parameters: Tensor) -> float:
        """Return the share of held-out samples with the right label; ``parameters`` are flat."""
        self._flat.copy_(parameters)
        x, y = self._test
        told = self._module(x)
        self.losses.append(F.cross_entropy(told, y).item())
        return float((told.argmax(1) == y).float().mean())


class MuonTask(LossTask):
    """A task whose first matrix is stepped by Muon, and all other weights by SGD with momentum, as in MuLoCo (arXiv
    2505.23725), which has AdamW there."""

    def __init__(self, module: nn.Module, data: Split, learning_rate: float, muon_lr: float) -> None:
        super().__init__(module, data, learning_rate)
        self._how = Orthogonalisation(0.95, True, (3.4445, -4.7750, 2.0315), 1e-7, 5, None, torch.float32)
        ends = list(accumulate(one.numel() for one in module.parameters()))
        shapes = [one.shape for one in module.parameters()]
        at = next(place for place, shape in enumerate(shapes) if len(shape) == 2)
        self._span = slice(ends[at] - shapes[at].numel(), ends[at])
        self._shape = shapes[at]
        self._rate = muon_lr / learning_rate * self._how.ratio(*self._shape)

    def direction(self, velocity: Tensor | None, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """Return the direction and the velocity, (size,) each."""
        kept = torch.zeros_like(gradient) if velocity is None else velocity.clone()
        own, its = self._span, gradient[self._span]
        momentum = kept[own].lerp(its, 1.0 - self._how.momentum)
        kept.mul_(self.momentum).add_(gradient)
        kept[own] = momentum
        found = kept.clone()
        matrix = its.lerp(momentum, self._how.momentum).view(1, *self._shape)
        found[own] = self._rate * orthogonalised(matrix, self._how).reshape(-1)
        return found, kept


class NormalizedTask(LossTask):
    """A task with batch norm: each batch is normalized by its own statistics, an evaluation by the workers' mean
    statistics.

    Each evaluation takes these from some batches of each site with the current model, which running statistics converge
    to.

    ``numbers``: of the samples at each site, one vector for each; ``batch``: samples of a site in a step.
    """

    by_sample = False

    def __init__(self, module: nn.Module, data: Split, rate: float, numbers: Sequence[Tensor], batch: int) -> None:
        super().__init__(module, data, rate)
        self._norms = [one for one in module.modules() if isinstance(one, nn.BatchNorm2d)]
        rng = torch.Generator().manual_seed(0)
        self._batches = [
            own[torch.randperm(len(own), generator=rng)[: _CALIBRATED * batch]].split(batch) for own in numbers
        ]

    @torch.no_grad()
    def accuracy(self, parameters: Tensor) -> float:
        self._flat.copy_(parameters)
        found = []
        for batches in self._batches:
            for norm in self._norms:
                norm.reset_running_stats()
                norm.momentum = None  # a plain mean over the batches
            for batch in batches:
                self._module(self._train[0][batch])
            found.append([(norm.running_mean.clone(), norm.running_var.clone()) for norm in self._norms])  # type: ignore[union-attr]
        for norm, each in zip(self._norms, zip(*found, strict=True), strict=True):
            norm.running_mean = torch.stack([mean for mean, _ in each]).mean(0)
            norm.running_var = torch.stack([var for _, var in each]).mean(0)
        self._module.eval()
        accuracy = super().accuracy(parameters)
        self._module.train()
        return accuracy


def lenet(channels: int, classes: int, norm: str, seed: int) -> nn.Module:
    """Return a small LeNet for images of 16 × 16 with group norm of two groups (``gn``) or batch norm (``bn``)."""
    torch.manual_seed(seed)

    def block(before: int, after: int) -> list[nn.Module]:
        normal = nn.BatchNorm2d(after) if norm == "bn" else nn.GroupNorm(_GROUPS, after)
        return [nn.Conv2d(before, after, 3, padding=1, bias=False), normal, nn.ReLU(), nn.MaxPool2d(2)]

    return nn.Sequential(*block(channels, 16), *block(16, 32), *block(32, 32), nn.Flatten(), nn.Linear(32 * 4, classes))


def small_images(samples: int) -> Split:
    """Return CIFAR-10 at 16 × 16, or digits if ``UNEVEN_DATA`` has none."""
    found = resnet(_LOOKED_AT)
    (x, y), (test_x, test_y) = found.train.tensors, found.test.tensors
    return (F.avg_pool2d(x[:samples], 2), y[:samples]), (F.avg_pool2d(test_x, 2), test_y)


def flat_images(name: str, samples: int) -> Split:
    data = images(name)
    x, y = (one[:samples] for one in data.train.tensors)
    test_x, test_y = (one[:_LOOKED_AT] for one in data.test.tensors)
    return (x.flatten(1), y), (test_x.flatten(1), test_y)


def text(samples: int) -> tuple[Split, int]:
    """Return windows of tiny Shakespeare with the next character, and the number of kinds of characters. Raises
    DataError: the text is not on this machine."""
    letters = shakespeare()
    kinds = {letter: number for number, letter in enumerate(sorted(set(letters)))}
    numbers = torch.tensor([kinds[one] for one in letters])
    windows = numbers.unfold(0, PAST + 1, 1)
    picked = windows[torch.randperm(len(windows), generator=torch.Generator().manual_seed(0))[: samples + _LOOKED_AT]]
    x, y = picked[:, :-1], picked[:, -1]
    return ((x[:samples], y[:samples]), (x[samples:], y[samples:])), len(kinds)


def perceptron(inputs: int, classes: int, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(inputs, 128), nn.ReLU(), nn.Linear(128, classes))


def guess(kinds: int, seed: int) -> nn.Module:
    """Return a network that predicts the next character."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Embedding(kinds, 16), nn.Flatten(), nn.Linear(16 * PAST, 128), nn.ReLU(), nn.Linear(128, kinds)
    )


def make(name: str, samples: int) -> Callable[..., LossTask]:
    """Return seed → a task: ``digits``, ``fashion-mnist``, ``cifar10`` or ``text``. The first two also take the
    learning rate, and that of Muon for the hidden layer. Raises UnknownNameError: no such task.
    DataError: no data for it."""
    if name in ("digits", "fashion-mnist"):
        data = flat_images(name, samples)
        inputs, classes = data[0][0].shape[1], int(data[0][1].max()) + 1

        def images_task(seed: int, rate: float = 0.1, muon_rate: float = 0.0) -> LossTask:
            module = perceptron(inputs, classes, seed)
            return MuonTask(module, data, rate, muon_rate) if muon_rate else LossTask(module, data, rate)

        return images_task
    if name == "cifar10":
        data = small_images(samples)
        return lambda seed: LossTask(lenet(3, 10, "gn", seed), data, 0.05)
    if name == "text":
        data, kinds = text(samples)
        return lambda seed: LossTask(guess(kinds, seed), data, 0.2)
    raise UnknownNameError("task", name, ("digits", "fashion-mnist", "cifar10", "text"))
