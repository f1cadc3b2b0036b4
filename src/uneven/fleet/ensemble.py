"""What is to be trained: members, the data they share, and when a member is done."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import nn

from uneven.errors import ConfigError, DataError
from uneven.fleet.member.converge import Never, Rule


@dataclass(slots=True)
class Member:
    """One model with everything that trains it; what a factory returns.

    A sample's last field is the target, the others go into the model; a sample of one field is both.

    Attributes:
        model: any module.
        optimizer: made from the model's parameters.
        batch_size: samples of a step; the last batch of an epoch may be smaller.
        drop_last: leave out that smaller batch.
        loss: called with the model's output and the target; the mean over the batch.
        scheduler: stepped as ``schedule`` says; ``ReduceLROnPlateau`` gets the metric.
        find_unused_parameters: set it if a forward pass may leave out some parameters; asked only where several workers
            train the member.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    batch_size: int = 64
    loss: Callable[[Any, Any], torch.Tensor] = F.cross_entropy
    scheduler: Any = None
    schedule: Literal["epoch", "batch"] = "epoch"
    find_unused_parameters: bool = False
    drop_last: bool = False


Factory = Callable[[], Member]
"""Makes a member from nothing, in whatever process it is called."""


@dataclass(frozen=True, slots=True)
class Metric:
    """What members are judged by, on the validation set.

    Attributes:
        of: output and target → mean over the batch; None takes the member's own loss.
    """

    name: str
    of: Callable[[Any, Any], torch.Tensor] | None
    higher_is_better: bool


def _right(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    if target.dim() == output.dim() > 1 and target.shape[1] == 1:
        target = target[:, 0]
    if output.dim() < 2 or output.shape[1] < 2 or target.shape != (len(output), *output.shape[2:]):
        raise DataError(
            f"fleet.accuracy of outputs {tuple(output.shape)} and targets {tuple(target.shape)}: give outputs "
            f"[samples, classes], of two classes or more, and a class for each sample; or a fleet.Metric of your own"
        )
    return (output.argmax(1) == target).float().mean()


own_loss = Metric("loss", None, higher_is_better=False)
accuracy = Metric("accuracy", _right, higher_is_better=True)


@dataclass(frozen=True, kw_only=True)
class Ensemble:
    """Unlike models that train on the same data.

    Every epoch's samples are read, decoded and transformed once, in processes for that alone, and all members that
    train at that time see the same ones; also the same random crops.

    Attributes:
        members: name → function without arguments that returns a :class:`Member`. It is called in another process, so
            it must lie at the top level of a module (or be a ``functools.partial`` of one that does).
        dataset: has ``__len__`` and ``__getitem__``; a sample is a tensor, array or number, or a tuple of them.
        transform: called with each sample, as the data set gives it, in every epoch anew; makes all samples the same
            shape. ``random``, ``numpy.random`` and torch are seeded before each chunk of samples.
        validate: a data set as ``dataset``, whose samples look alike. Without one, members are judged by their training
            loss.
        validate_transform: the same for ``validate``.
        metric: ``fleet.accuracy``, ``fleet.own_loss`` or your own :class:`Metric`.
        converged: asked at the end of each epoch of each member; ``fleet.plateau(…)``, ``fleet.target(…)``,
            ``fleet.never()`` or your own function of a :class:`~uneven.fleet.member.converge.History`.
        max_epochs: after so many a member is trained, whatever the rule says.
        seed: decides the first weights, the order of the samples and what augmentation draws.

    Raises:
        ConfigError: no members, no epochs, an empty data set, or something that is not what it must be.
    """

    members: Mapping[str, Factory]
    dataset: Any
    transform: Callable[[Any], Any] | None = None
    validate: Any = None
    validate_transform: Callable[[Any], Any] | None = None
    metric: Metric = own_loss
    converged: Rule = field(default_factory=Never)
    max_epochs: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.members:
            raise ConfigError("an ensemble without members: name at least one")
        for name, factory in self.members.items():
            if not (isinstance(name, str) and name and name.isprintable()):
                raise ConfigError(f"a member is named {name!r}: give it a name of printable characters")
            if not callable(factory):
                raise ConfigError(
                    f"member {name!r} is a {type(factory).__name__}: give the function that makes it, which is called "
                    f"in another process"
                )
        if not isinstance(self.metric, Metric):
            raise ConfigError(f"metric is {self.metric!r}: give fleet.accuracy, fleet.own_loss or a fleet.Metric")
        for what, call in (("transform", self.transform), ("validate_transform", self.validate_transform),
                           ("converged", self.converged)):  # fmt: skip
            if not (callable(call) or (call is None and what != "converged")):
                raise ConfigError(f"{what} is {call!r}: give a function")
        if self.max_epochs < 1:
            raise ConfigError(f"max_epochs is {self.max_epochs}: train for at least one epoch")
        for what, data in (("dataset", self.dataset), ("validate", self.validate)):
            if data is None and what == "validate":
                continue
            if not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
                raise ConfigError(
                    f"{what} is a {type(data).__name__}: it needs __len__ and __getitem__, for every sample is to be "
                    f"used once an epoch; a stream cannot promise that"
                )
            if len(data) == 0:
                raise ConfigError(f"{what} is empty")
