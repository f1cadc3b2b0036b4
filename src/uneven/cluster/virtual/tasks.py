"""The registry of tasks for ``--train``; nothing is downloaded."""

import torch
from torch import nn

from uneven.cluster.virtual.datasets import ImageData, digits, fashion_mnist
from uneven.cluster.virtual.task import Classification, LearningTask
from uneven.errors import ConfigError
from uneven.policy.core.registry import Registry

_WIDEST = 100_000  # hidden units: in virtual time the models of all nodes are in one memory

tasks: Registry[LearningTask] = Registry("training task", LearningTask)  # type: ignore[type-abstract]
"""The registry of training tasks."""


def _digits(*, hidden: int = 32, learning_rate: float = 0.5, momentum: float = 0.0, seed: int = 0) -> LearningTask:
    """1,442 of the digits that come with uneven; a perceptron with one hidden layer, or none if ``hidden`` is 0."""
    return _perceptron(digits(), 1_442, hidden, learning_rate, momentum, seed)


def _fashion(
    *, samples: int = 10_000, hidden: int = 32, learning_rate: float = 0.1, momentum: float = 0.0, seed: int = 0
) -> LearningTask:
    """The first ``samples`` images of Fashion-MNIST for training, the first 2,000 of its test part for evaluation."""
    return _perceptron(fashion_mnist(), samples, hidden, learning_rate, momentum, seed)


def _perceptron(
    data: ImageData, samples: int, hidden: int, learning_rate: float, momentum: float, seed: int
) -> LearningTask:
    bounds = (("samples", samples, 1, 2**63), ("hidden", hidden, 0, _WIDEST), ("seed", seed, 0, 2**63 - 1))
    for key, value, least, most in bounds:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ConfigError(
                f"{data.name}: {key} = {value!r} must be a whole number, at least {least} and at most {most:,}"
            )
    if isinstance(learning_rate, bool) or not isinstance(learning_rate, int | float) or not 0 < learning_rate < 1e9:
        raise ConfigError(f"{data.name}: learning_rate = {learning_rate!r} must be above 0 and below 1e9")
    if isinstance(momentum, bool) or not isinstance(momentum, int | float) or not 0 <= momentum < 1:
        raise ConfigError(f"{data.name}: momentum = {momentum!r} must be at least 0 and below 1")
    x, y = (column[:samples] for column in data.train.tensors)
    test_x, test_y = (column[:2_000] for column in data.test.tensors)
    inputs = x[0].numel()
    with torch.random.fork_rng(devices=[]):  # keeps the caller's random state
        torch.manual_seed(seed)
        first = [nn.Linear(inputs, hidden), nn.ReLU()] if hidden else []
        module = nn.Sequential(*first, nn.Linear(hidden or inputs, data.classes))
    return Classification(
        module, (x.flatten(1), y), (test_x.flatten(1), test_y), learning_rate=learning_rate, momentum=momentum
    )


tasks.register("digits", _digits)
tasks.register("fashion", _fashion)
