"""Define the members, the data they share and the end of their training."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import nn

from uneven.errors import ConfigError, DataError
from uneven.fleet.pure.converge import Never, Rule


@dataclass(slots=True)
class Member:
    """One model with everything that trains it, as returned by a factory.

    The last field of a sample is the target, the others are the model's inputs; a single field is both.

    Attributes:
        model: any module.
        optimizer: made from the model's parameters.
        batch_size: samples per step; the last batch of an epoch may be smaller.
        loss: function of the model's output and the target; returns the mean over the batch, a scalar.
        scheduler: stepped as ``schedule`` says; ``ReduceLROnPlateau`` gets the metric.
        schedule: "epoch" or "batch".
        find_unused_parameters: needed if a forward pass may leave out parameters and several workers train the member.
        drop_last: leave out the smaller last batch.
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
"""Makes a new member, in any process."""


@dataclass(frozen=True, slots=True)
class Metric:
    """The measure by which members are judged on the validation set.

    Attributes:
        name: for tables and messages.
        of: function of output and target; returns the mean over the batch, a scalar. None takes the member's own loss.
        higher_is_better: True if a larger value is better.
    """

    name: str
    of: Callable[[Any, Any], torch.Tensor] | None
    higher_is_better: bool


def _right(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    # A data set whose labels have shape (1,) gives targets of shape (n, 1).
    if target.dim() == output.dim() > 1 and target.shape[1] == 1:
        target = target[:, 0]
    if output.dim() < 2 or output.shape[1] < 2 or target.shape != (len(output), *output.shape[2:]):
        raise DataError(
            f"fleet.accuracy of outputs {tuple(output.shape)} and targets {tuple(target.shape)}: give outputs "
            "[samples, classes >= 2] and a class index per sample, or your own fleet.Metric"
        )
    return (output.argmax(1) == target).float().mean()


own_loss = Metric("loss", None, higher_is_better=False)
accuracy = Metric("accuracy", _right, higher_is_better=True)


@dataclass(frozen=True, kw_only=True)
class Ensemble:
    """Different models that train on the same data.

    Each epoch's samples are read, decoded and transformed once, in separate processes. All members that train at that
    time get the same samples, with the same random crops.

    Attributes:
        members: name → function without arguments that returns a :class:`Member`. It is called in another process, so
            it must be at the top level of a module (or be a ``functools.partial`` of such a function).
        dataset: has ``__len__`` and ``__getitem__``; a sample is a tensor, array or number, or a tuple of them.
        transform: called with each sample of the data set in every epoch; returns samples of one shape. ``random``,
            ``numpy.random`` and torch are seeded before each chunk of samples.
        validate: a data set with samples like those of ``dataset``. Without one, the training loss judges members.
        validate_transform: the transform for ``validate``.
        metric: ``fleet.accuracy``, ``fleet.own_loss`` or your own :class:`Metric`.
        converged: the rule that ends a member's training, called after each of its epochs: ``fleet.plateau(…)``,
            ``fleet.target(…)``, ``fleet.never()`` or your own function of a
            :class:`~uneven.fleet.pure.converge.History`.
        max_epochs: limit of a member's epochs.
        seed: determines the first weights, the order of the samples and the random numbers of augmentation.

    Raises:
        ConfigError: there are no members, epochs or samples, or a value has the wrong type.
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
            raise ConfigError("an ensemble without members: give at least one")
        for name, factory in self.members.items():
            if not (isinstance(name, str) and name and name.isprintable()):
                raise ConfigError(f"a member has the name {name!r}: use printable characters")
            if not callable(factory):
                raise ConfigError(
                    f"member {name!r} is a {type(factory).__name__}: give a function that returns a fleet.Member"
                )
        if not isinstance(self.metric, Metric):
            raise ConfigError(f"metric is {self.metric!r}: give fleet.accuracy, fleet.own_loss or a fleet.Metric")
        for what, call in (
            ("transform", self.transform),
            ("validate_transform", self.validate_transform),
            ("converged", self.converged),
        ):
            if not (callable(call) or (call is None and what != "converged")):
                raise ConfigError(f"{what} is {call!r}: give a function")
        if self.max_epochs < 1:
            raise ConfigError(f"max_epochs is {self.max_epochs}: give at least 1")
        for what, data in (("dataset", self.dataset), ("validate", self.validate)):
            if data is None and what == "validate":
                continue
            if not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
                raise ConfigError(
                    f"{what} is a {type(data).__name__}: give a dataset with __len__ and __getitem__; streams are "
                    "not supported, because each epoch uses every sample once"
                )
            if len(data) == 0:
                raise ConfigError(f"{what} is empty: give at least one sample")
