"""This worker's model as the exchanges see it: one vector, and what merges keep from one exchange to the next."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from uneven.core.actions import BlockMomentum, Elastic, Exchange, Mean, Moment
from uneven.errors import ConfigError
from uneven.merge import (
    EXTRA,
    Block,
    Flat,
    apart,
    average,
    contribution,
    elastic,
    mean_square_root,
    resting_in,
    weight_in,
)
from uneven.sync import SyncPolicy

Total = Callable[[Tensor, Exchange], int]
"""Replaces a vector by its sum over the members of an exchange; returns the bytes that were sent for it."""


KEPT = ("copy", "delta", "start", "centre")
"""Vectors that a checkpoint holds of a replica with a centre."""


@dataclass(frozen=True, slots=True)
class Met:
    """What came of an exchange.

    Attributes:
        distance: root mean square of this replica's distance from the mean, over the parameters.
        finite: whether this replica held finite numbers only.
        resting: how many of the members rest.
    """

    sent_bytes: int
    distance: float
    finite: bool
    resting: int


class _Room:
    """Memory in which one thread works its exchanges out.

    It is kept, for new pages of memory cost the processor more than what is done with them: an exchange of 4 MB with a
    new vector for each of its results took it 20 ms, and takes 9 so, of which 4 are gloo's.
    """

    def __init__(self, flat: Flat) -> None:
        self.own, self.more, self.total = flat.room(), flat.room(), flat.room(EXTRA)


def _weight(exchange: Exchange, samples: float) -> float:
    """Of a contribution; 1 where all count the same, or where there is nobody else."""
    equal = isinstance(exchange.merge, Elastic) or (isinstance(exchange.merge, Mean) and not exchange.merge.by_samples)
    return 1.0 if equal or len(exchange.members) == 1 else samples


def running_statistics(model: nn.Module) -> list[Tensor]:
    """Means and variances that batch-norm layers keep; other buffers stay with their worker."""
    layers = (one for one in model.modules() if isinstance(one, _BatchNorm))
    return [one for layer in layers for one in (layer.running_mean, layer.running_var) if one is not None]


class Replica:
    """What is exchanged of ``model``: the parameters that are trained, and the running statistics of batch norm.

    The statistics are linear in those of the batches, so they are averaged with the same weights as the parameters,
    or drawn to the centre as they are. They take part in no block momentum. Counters of batches stay with their worker.
    """

    def __init__(self, model: nn.Module) -> None:
        parameters = [one for one in model.parameters() if one.requires_grad]
        self._parameters = parameters
        self.flat = Flat(parameters, running_statistics(model))
        self.block: Block | None = None
        self.centre: Tensor | None = None  # the whole vector that the members last started from
        self._spare: Block | None = None  # the block before, whose memory is used again
        self._changing = threading.Lock()  # what merges keep; so that a checkpoint has all of one exchange
        self._rooms: dict[Moment, _Room] = {}  # one for each thread that exchanges

    def begin(self) -> None:
        """Training begins: the first block starts here, unless a checkpoint says where."""
        if self.block is None:
            self.block, self.centre = self._first()

    def _first(self) -> tuple[Block, Tensor]:
        values = self.flat.read()
        return Block.first(values[: self.flat.trained].clone()), values

    def gradients(self) -> dict[nn.Parameter, Tensor]:
        """Copies of those that there are now."""
        return {one: one.grad.clone() for one in self._parameters if one.grad is not None}

    def meet(self, exchange: Exchange, samples: float, total: Total, *, resting: bool = False) -> Met:
        """Take part in one exchange of parameters, from reading the replica to writing into it. Waits.

        Args:
            samples: that this replica, or the party that it speaks for, took since its last exchange.

        Raises:
            PeerError: somebody did not take part.
        """
        room = self._room(exchange.moment)
        own = self.flat.read(room.own)
        vector = contribution(own, _weight(exchange, samples), resting=resting, into=room.total)
        sent_bytes = total(vector, exchange)
        away = apart(own, vector, room.more)
        distance = mean_square_root(away[: self.flat.trained])
        finite = math.isfinite(distance) or bool(torch.isfinite(own.sum()))  # else somebody's is not
        back = exchange.write_back
        if exchange.moment is Moment.BACKGROUND and isinstance(exchange.merge, Mean) and not back.lerp:
            self.flat.add(away, -back.alpha)
        else:
            outcome = self._merged(exchange, own, vector, samples, room.more)
            self._write(exchange, own, outcome)
        return Met(sent_bytes, distance, finite, resting_in(vector))

    def _room(self, moment: Moment) -> _Room:
        if moment not in self._rooms:
            self._rooms[moment] = _Room(self.flat)
        return self._rooms[moment]

    def _merged(self, exchange: Exchange, own: Tensor, total: Tensor, samples: float, room: Tensor) -> Tensor:
        count, middle = weight_in(total), average(total)
        if isinstance(exchange.merge, Mean):
            return middle
        assert self.block is not None, "the replica has not begun"
        assert self.centre is not None
        with self._changing:
            if isinstance(exchange.merge, Elastic):
                return elastic(own, self.centre, middle, count, exchange.merge.alpha, room)
            assert isinstance(exchange.merge, BlockMomentum), "refused before it came here"
            trained = self.flat.trained
            taken = samples if len(exchange.members) == 1 else count  # who is alone has weight 1
            following = self.block.after(middle[:trained], exchange.merge, taken, self._spare)
            self._spare, self.block = self.block, following
            self.centre[:trained] = self.block.start
            self.centre[trained:] = middle[trained:]
            return self.centre

    def _write(self, exchange: Exchange, sent: Tensor, outcome: Tensor) -> None:
        """Into the replica, which has moved on after an exchange beside the training; ``sent`` is lost then."""
        back = exchange.write_back
        if exchange.moment is not Moment.BACKGROUND:
            self.flat.write(outcome)
        elif back.lerp:
            self.flat.interpolate(outcome, back.alpha)
        else:
            self.flat.add(torch.sub(outcome, sent, out=sent), back.alpha)

    def mean(self, total: Total, everybody: Exchange) -> Tensor:
        """The plain mean of all replicas: the model to evaluate where a policy names the mean. Waits."""
        vector = contribution(self.flat.read(), 1.0)
        total(vector, everybody)
        return average(vector)

    def state_dict(self) -> dict[str, Tensor]:
        """What merges keep, also before they have: ``torch.distributed.checkpoint`` reads into what it finds here."""
        with self._changing:
            block, centre = (self.block, self.centre) if self.block is not None else self._first()
            assert centre is not None
            kept = zip(KEPT, (block.copy, block.delta, block.start, centre), strict=True)
            return {key: value.clone() for key, value in kept}

    @property
    def block_samples(self) -> float:
        """Those of a block of everybody; 0 before the first one has ended. Belongs to :meth:`state_dict`."""
        return 0.0 if self.block is None else self.block.samples

    @property
    def seen_samples(self) -> float:
        """Those of all blocks that have ended. Belongs to :meth:`state_dict`."""
        return 0.0 if self.block is None else self.block.seen

    def load_state_dict(self, state: dict[str, Tensor], block_samples: float, seen_samples: float) -> None:
        """Inverse of :meth:`state_dict`."""
        if state:
            kept = {key: value.to(self.flat.device, self.flat.dtype, copy=True) for key, value in state.items()}
            self.block = Block(kept["copy"], kept["delta"], kept["start"], block_samples, seen_samples)
            self.centre = kept["centre"]


def broadcast_from_first(model: nn.Module) -> None:
    """Let every rank start from rank 0's parameters and buffers."""
    for one in chain(model.parameters(), model.buffers()):
        dist.broadcast(one.data, src=0)


def refuse_synchronised_layers(model: nn.Module, policy: SyncPolicy) -> None:
    """Refuse layers that would meet everybody in every forward pass.

    Raises:
        ConfigError: naming the layer.
    """
    for name, layer in model.named_modules():
        if isinstance(layer, nn.SyncBatchNorm):
            raise ConfigError(
                f"{name} is a SyncBatchNorm, which waits for everybody in every forward pass; under {policy!r} workers "
                f"take steps apart: use BatchNorm, whose running statistics are averaged with the parameters"
            )
