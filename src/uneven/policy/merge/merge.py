"""The interface of merges, which combine the contributions of several workers.

The arithmetic uses tensor methods only, so that a merge does not import torch: policies, the simulator and ``uneven
plan`` hold the same objects as the engine, and use only their attributes.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeAlias

from uneven.policy.core.registry import Registry

if TYPE_CHECKING:
    from torch import Tensor

Kept: TypeAlias = dict[str, Any]
"""The state of a merge between exchanges: named vectors of the replica's length, and plain numbers."""


class Payload(Enum):
    """The kind of a contribution."""

    GRADIENT = "gradient"  #: of this step
    PARAMETERS = "parameters"  #: the current replica
    DELTA = "delta"  #: the movement of the replica's own steps since the last exchange that sent it


class Combined(Enum):
    """The way to combine contributions, which determines the new state of a replica."""

    MEAN = "mean"  #: the mean of all is merged; every replica continues from the same result
    SUM = "sum"  #: added to the server's parameters, which replace the replica; without a server, to all other replicas
    CENTRE = "centre"  #: each is added to a centre, and subtracted from its replica


class Merge(ABC):
    """A rule that combines contributions.

    An exchange transports each worker's contribution (:meth:`contribute`) to the place where they are combined, as a
    weighted mean or a sum (``combined``). There it calls :meth:`combine`. That place is every worker, the parameter
    server, or the simulator. Both methods are local.

    Vectors are flat torch tensors of shape (n,) unless stated otherwise. A merge is compared, printed and hashed by its
    options (make it a frozen dataclass); changing state is in its :data:`Kept` value.

    A merge is one file and one registration::

        @dataclass(frozen=True, slots=True)
        class Halfway(Merge):
            def combine(self, kept, given, weight, *, in_place=False):
                centre = kept["centre"] + 0.5 * (given - kept["centre"])
                return {"centre": centre}, centre

            def begin(self, start):
                return {"centre": start}

        merges.register("halfway", Halfway)

    Attributes:
        combined: how contributions are combined.
        payloads: the kinds of contributions that it supports.
        by_samples: whether contributions to a mean are weighted by their samples; otherwise equally.
        plain: whether it contributes its input and returns the mean. Exchanges then take short cuts, and groups may
            change between exchanges, because members share no state.
        whole: whether batch norm's running statistics are merged like the parameters, in one vector behind them;
            otherwise they are averaged separately. Merges without a mean always merge them.
        bytes_factor: for the simulator, length of a contribution over that of the model.
    """

    __slots__ = ()

    combined: Combined = Combined.MEAN
    payloads: frozenset[Payload] = frozenset({Payload.PARAMETERS})
    by_samples: bool = True
    plain: bool = False
    whole: bool = False
    bytes_factor: float = 1.0

    def begin(self, start: "Tensor") -> Kept:
        """Return the state before the first exchange: nothing for a mean, otherwise ``{"centre": start}``.

        ``start`` is the initial vector (n,) of all replicas, or of the server; it may be kept without a copy. A merge
        without a mean has the parameter server's vector as ``centre``, here and in :meth:`combine`.
        """
        return {} if self.combined is Combined.MEAN else {"centre": start}

    def contribute(self, own: "Tensor", kept: Kept, *, in_place: bool = False) -> "Tensor":
        """Return a worker's contribution, shape (m,), where m is ``bytes_factor`` times n.

        Args:
            own: payload, shape (n,): parameters, or the movement of its steps.
            kept: this worker's state. Empty for a sum, whose state is with the copy.
            in_place: whether the memory of ``own`` may be reused for the result.
        """
        return own

    @abstractmethod
    def combine(self, kept: Kept, given: "Tensor", weight: float, *, in_place: bool = False) -> "tuple[Kept, Tensor]":
        """Combine contributions. It is deterministic, so that all workers compute the same result.

        Args:
            kept: the state before, of this worker or of the server.
            given: mean, shape (m,); or a partial sum for a sum or a centre, whose order does not matter.
            weight: total weight of the contributions: their samples, if weighted by them.
            in_place: whether the memory of ``given`` and of the state may be reused. If not set, both must stay
                unchanged.

        Returns:
            The new state; and the result, shape (n,): the vector from which replicas continue, the server's state, or
                the centre.
        """

    def distance(self, apart: float) -> float:
        """Return the distance of replicas from their mean or centre if contributions have the distance ``apart``."""
        return apart

    def served(self, payload: Payload) -> float | None:
        """Return the factor with which a real parameter server applies a ``payload``; None if it cannot.

        The server adds the factor times a movement (``DELTA``, ``SUM``) to its copy; or moves copy and replica towards
        each other by the factor times their difference (``PARAMETERS``, ``CENTRE``).
        """
        return None

    def served_step(self) -> tuple[float, float] | None:
        """Return momentum μ and learning rate η of a real parameter server's outer step on the mean movement; None for
        no step.

        With G the mean, weighted by samples, V ← μ V + G, and the copy moves by η (G + μ V).
        """
        return None

    @property
    def keeps(self) -> bool:
        """True if there is state between exchanges."""
        return self.combined is not Combined.MEAN or type(self).begin is not Merge.begin

    def weight(self, samples: float) -> float:
        """Return the weight of a contribution made of ``samples``."""
        return samples if self.by_samples and self.combined is Combined.MEAN else 1


merges: Registry[Merge] = Registry("merge", Merge)  # type: ignore[type-abstract]


@dataclass(frozen=True, slots=True)
class OuterMovement(Merge):
    """Move the copy by η (G + μ V) with V = μ V + G, where G is the mean movement of the replicas.

    Unlike with :class:`~uneven.policy.merge.BlockMomentum`, starting points and contributors may differ.
    """

    momentum: float = 0.9
    learning_rate: float = 0.7

    payloads = frozenset({Payload.DELTA})

    def begin(self, start: "Tensor") -> Kept:
        """Return a zero V, flat like ``start``."""
        return {"velocity": start.new_zeros(start.shape)}

    def served_step(self) -> tuple[float, float]:
        return self.momentum, self.learning_rate

    def combine(self, kept: Kept, given: "Tensor", weight: float, *, in_place: bool = False) -> "tuple[Kept, Tensor]":
        """Return the movement of the copy; ``given``, shape (n,), is the mean movement."""
        velocity = self.momentum * kept["velocity"] + given
        return {"velocity": velocity}, self.learning_rate * (given + self.momentum * velocity)
