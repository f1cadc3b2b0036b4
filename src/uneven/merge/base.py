"""The interface of merges: how what several workers contribute becomes one. Pure.

The arithmetic is written with the methods of tensors, so that a merge imports no torch: policies, the simulator and
``uneven plan`` hold the same objects as the engine, and ask them only what they say about themselves.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeAlias

from uneven.registry import Registry

if TYPE_CHECKING:
    from torch import Tensor

Kept: TypeAlias = dict[str, Any]
"""What a merge keeps from one exchange to the next: named vectors of the replica's length, and plain numbers."""


class Payload(Enum):
    """What moves."""

    GRADIENT = "gradient"  # of this step
    PARAMETERS = "parameters"  # the replica as it stands
    DELTA = "delta"  # what the replica's own steps have moved since the last exchange that carried it


class Combined(Enum):
    """How contributions are combined, and so what a replica becomes."""

    MEAN = "mean"  # their mean is merged once they are all there; every replica goes on from the one outcome
    SUM = "sum"  # added to the server's parameters, which the replica becomes; without a server, to all other replicas
    CENTRE = "centre"  # each is added to a centre, and taken from the replica that it came from


class Merge(ABC):
    """How contributions become one.

    A carrier takes what each worker contributes (:meth:`contribute`) to where it is combined, as a weighted mean or as
    a sum (``combined``); there :meth:`combine` says what comes of it. Where that is depends on the exchange: on every
    worker alike, on the parameter server, or in the simulator. Neither method communicates.

    Vectors are flat torch tensors, of shape (n,) unless said otherwise. A merge is compared, printed and hashed by its
    options (make it a frozen dataclass); what changes is in what it keeps.

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
        payloads: what it can merge.
        by_samples: whether a contribution to a mean weighs as many samples as went into it; else all weigh the same.
        plain: whether it contributes what it is given and comes to the mean of that. Carriers then take short cuts,
            and groups may change from one exchange to the next, as nothing is kept that all members would share.
        whole: whether batch norm's running statistics are merged as the parameters are, in one vector behind them;
            else they are averaged beside. A merge that is combined otherwise than by a mean merges them too.
        bytes_factor: length of a contribution as a part of the model's, for the simulator.
    """

    __slots__ = ()

    combined: Combined = Combined.MEAN
    payloads: frozenset[Payload] = frozenset({Payload.PARAMETERS})
    by_samples: bool = True
    plain: bool = False
    whole: bool = False
    bytes_factor: float = 1.0

    def begin(self, start: Tensor) -> Kept:
        """What it keeps before the first exchange.

        Args:
            start: where all replicas, or the server's parameters, begin. May be kept as it is.

        Returns:
            Nothing for a mean, else ``{"centre": start}``. A merge that is combined otherwise than by a mean has the
            parameter server under that name, here and in :meth:`combine`.
        """
        return {} if self.combined is Combined.MEAN else {"centre": start}

    def contribute(self, own: Tensor, kept: Kept, *, in_place: bool = False) -> Tensor:
        """What a worker gives.

        Args:
            own: of the payload's kind: its parameters, or what its steps have moved.
            kept: by this worker. Empty for a sum, where the copy keeps what is kept.
            in_place: the memory of ``own`` may be used for what is returned.

        Returns:
            Shape (m,), where m is ``bytes_factor`` times n.
        """
        return own

    @abstractmethod
    def combine(self, kept: Kept, given: Tensor, weight: float, *, in_place: bool = False) -> tuple[Kept, Tensor]:
        """What comes of the contributions. All who compute it from the same come to the same.

        Args:
            given: their mean, shape (m,); or some contributions to a sum or a centre, added up: one after the other or
                all at once comes to the same.
            weight: of all contributions together. By samples, so many went into them.
            in_place: the memory of ``given`` and of what was kept may be used again; whoever does not care ignores it.
                Not set, neither may be changed.

        Returns:
            What is kept from now on; and the outcome, shape (n,): what replicas go on from, the server's state, or the
            centre.
        """

    def distance(self, apart: float) -> float:
        """How far replicas are from their mean, or from the centre.

        Args:
            apart: how far contributions are from their mean, or what the exchange has moved the replica by.
        """
        return apart

    def served(self, payload: Payload) -> float | None:
        """The factor with which a real parameter server takes a contribution in; None where it cannot.

        The server adds the factor times a movement (``DELTA``, ``SUM``) to its copy; or moves copy and replica by the
        factor times their difference towards each other (``PARAMETERS``, ``CENTRE``).
        """
        return None

    def served_step(self) -> tuple[float, float] | None:
        """Momentum μ and learning rate η of the outer step that a real parameter server takes on the mean of movements;
        None where it takes none.

        With G that mean, by samples, V ← μ V + G and the copy moves by η (G + μ V).
        """
        return None

    @property
    def keeps(self) -> bool:
        """Whether anything is kept from one exchange to the next."""
        return self.combined is not Combined.MEAN or type(self).begin is not Merge.begin

    def weight(self, samples: float) -> float:
        """Weight of a contribution that so many samples went into."""
        return samples if self.by_samples and self.combined is Combined.MEAN else 1


merges: Registry[Merge] = Registry("merge", Merge)  # type: ignore[type-abstract]
"""Merges by name."""
