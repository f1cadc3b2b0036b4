"""Training tasks: gradients and a score, as functions of one flat vector of parameters."""

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from uneven.errors import ConfigError


class Gradient(NamedTuple):
    """The mean gradient over some samples, (size,), and their mean loss."""

    value: Tensor
    loss: float


class LearningTask(ABC):
    """A loss that is the mean over samples, and a score on held-out ones.

    The optimizer is SGD, v = momentum · v + g, x −= learning_rate · v, as in torch; override :meth:`direction` for
    another one.

    Attributes:
        samples: length of an epoch.
        learning_rate, momentum: of the optimizer.
        by_sample: whether samples are independent, so that batches at the same parameters can be computed together;
            False with batch normalization.
    """

    samples: int
    learning_rate: float
    momentum: float = 0.0
    by_sample: bool = True

    @abstractmethod
    def initial(self) -> Tensor:
        """Return the initial parameters, shape (size,), equal on every call."""

    @abstractmethod
    def gradient(self, parameters: Tensor, samples: Tensor) -> Gradient:
        """Return the gradient (size,) of the mean loss at ``parameters`` (size,) over samples, numbers (n,) int64."""

    def direction(self, velocity: Tensor | None, gradient: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the direction d of a step, x −= learning_rate · d, and the next ``velocity``; (size,) each."""
        if not self.momentum:
            return gradient, None
        found = gradient if velocity is None else self.momentum * velocity + gradient
        return found, found

    @abstractmethod
    def accuracy(self, parameters: Tensor) -> float:
        """Return the share of held-out samples that ``parameters`` (size,) classify correctly, or another score to
        maximize."""

    def right(self, parameters: Tensor, samples: Tensor) -> float:
        """Return the share of these training samples, numbers (n,) int64, that ``parameters`` (size,) classify
        correctly.

        Raises:
            ConfigError: the task does not support it.
        """
        raise ConfigError(f"{type(self).__name__} cannot count correct predictions: implement right()")


class Classification(LearningTask):
    """Cross-entropy of a module on images; the module must treat samples independently, without batch statistics.

    Args:
        train, test: inputs and int64 labels.
    """

    def __init__(
        self,
        module: nn.Module,
        train: tuple[Tensor, Tensor],
        test: tuple[Tensor, Tensor],
        *,
        learning_rate: float,
        momentum: float = 0.0,
    ) -> None:
        self.samples = len(train[0])
        self.learning_rate = learning_rate
        self.momentum = momentum
        self._module = module
        self._train = train
        self._test = test
        self._flat, self._gradient = _flatten(module)
        self._initial = self._flat.clone()

    def initial(self) -> Tensor:
        """Return the module's parameters at construction; shape (size,)."""
        return self._initial

    def gradient(self, parameters: Tensor, samples: Tensor) -> Gradient:
        """Return the gradient (size,) at ``parameters`` (size,) by autograd, in the module itself."""
        # The module's parameters and gradients are views of these two vectors, so copying in place is enough.
        self._flat.copy_(parameters)
        self._gradient.zero_()
        x, y = self._train
        loss = F.cross_entropy(self._module(x[samples]), y[samples])
        loss.backward()
        return Gradient(self._gradient.clone(), loss.item())

    @torch.no_grad()
    def accuracy(self, parameters: Tensor) -> float:
        """Return the share of test images that ``parameters`` (size,) label correctly."""
        self._flat.copy_(parameters)
        return self._share(*self._test)

    @torch.no_grad()
    def right(self, parameters: Tensor, samples: Tensor) -> float:
        self._flat.copy_(parameters)
        x, y = self._train
        return self._share(x[samples], y[samples])

    def _share(self, x: Tensor, y: Tensor) -> float:
        return float((self._module(x).argmax(1) == y).float().mean())


def _flatten(module: nn.Module) -> tuple[Tensor, Tensor]:
    """Make a module's parameters and gradients views of two flat vectors (size,), and return these."""
    named = list(module.parameters())
    flat = torch.cat([one.detach().reshape(-1) for one in named])
    gradient = torch.zeros_like(flat)
    place = 0
    for one in named:
        end = place + one.numel()
        one.data = flat[place:end].view_as(one)
        one.grad = gradient[place:end].view_as(one)
        place = end
    return flat, gradient
